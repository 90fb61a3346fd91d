"""The TD formulas against plain Python loops in float64."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from owlrl.td import double_q_value, max_q_value, taken, td_target


@settings(deadline=None, max_examples=50)
@given(heads=st.integers(1, 3), batch=st.integers(0, 4), actions=st.integers(1, 4), seed=st.integers(0, 99))
def test_formulas_equal_the_loops(heads, batch, actions, seed):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(heads, batch, actions, generator=generator).double()
    target = torch.randn(heads, batch, actions, generator=generator).double()
    action = torch.randint(actions, (batch,), generator=generator)
    reward, discount = torch.rand(2, batch, generator=generator).double()
    terminated = torch.rand(batch, generator=generator) < 0.5
    best, double, of_taken = max_q_value(target), double_q_value(q, target), taken(q, action)
    goal = td_target(reward, discount, terminated, double)
    for h in range(heads):
        for b in range(batch):
            values, values_target = q[h, b].tolist(), target[h, b].tolist()
            assert best[h, b] == max(values_target)
            chosen = values_target[values.index(max(values))]
            assert double[h, b] == chosen
            assert of_taken[h, b] == values[action[b]]
            expected = reward[b].item() + (0.0 if terminated[b] else discount[b].item() * chosen)
            assert math.isclose(goal[h, b].item(), expected, rel_tol=1e-12, abs_tol=1e-15)


def test_a_terminal_row_is_not_spoiled_by_its_next_value():
    goal = td_target(torch.ones(1), torch.ones(1), torch.tensor([True]), torch.tensor([float("nan")]))
    assert goal.item() == 1.0
