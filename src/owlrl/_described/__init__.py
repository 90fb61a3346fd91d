"""What learners described by their parts (`QLearner`, `ActorCriticLearner`) have in common."""
