"""Any order of adding, ending, switching, coming back, drawing, clearing and saving, against lists."""

from __future__ import annotations

import copy
import dataclasses
import warnings

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from owlrl.replay import PrioritizedSampler, RewardBalancedSampler, TaskScopedReplay, UniformSampler
from owlrl.replay.ring import fair_shares
from tests.replay.oracle import Lane, Step, as_columns, check_rows, expected_rows
from tests.rows import rows_of

TASKS = st.sampled_from(["left", "right", "up"])
# Few different observations, so that a new episode often starts with what the last one ended with.
OBSERVATIONS = st.integers(0, 2)
SAMPLERS = [UniformSampler, PrioritizedSampler, RewardBalancedSampler]


def same_batch(a, b) -> bool:
    pairs = [(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a)]
    return all(torch.equal(x, y) if isinstance(x, torch.Tensor) else np.array_equal(x, y) for x, y in pairs)


class ReplayMachine(RuleBasedStateMachine):
    @initialize(
        envs=st.integers(1, 3),
        capacity=st.integers(3, 14),
        warm_start=st.integers(0, 8),
        n_step=st.integers(1, 4),
        sampler=st.sampled_from(SAMPLERS),
    )
    def start(self, envs, capacity, warm_start, n_step, sampler):
        self.settings = dict(num_envs=envs, warm_start=warm_start, n_step=n_step, gamma=0.5)
        self.capacity, self.sampler = capacity, sampler
        self.replay = self.make(seed=0)
        self.task, self.stored = None, {}
        self.lanes = self.empty()
        self.clock = self.lost = 0
        self.look_again()

    def look_again(self):
        self.unseen = [[] for _ in self.lanes]

    def make(self, seed):
        return TaskScopedReplay(
            self.capacity,
            observation_shape=(),
            observation_dtype=np.uint8,
            sampler=self.sampler(),
            seed=seed,
            **self.settings,
        )

    def empty(self):
        return [
            Lane(self.capacity // self.settings["num_envs"] + 1) for _ in range(self.settings["num_envs"])
        ]

    def step(self, lane, data) -> Step:
        self.clock += 1
        start = data.draw(OBSERVATIONS)
        if lane.episodes and not lane.closed and data.draw(st.booleans()):
            start = lane.episodes[-1][-1].next_observation
        reward = data.draw(st.sampled_from([0.0, 0.0, 1.0, -2.0]))
        end = data.draw(st.sampled_from([(False, False)] * 3 + [(True, False), (False, True), (True, True)]))
        return Step(start, self.clock, reward, data.draw(OBSERVATIONS), *end)

    @precondition(lambda self: self.settings["num_envs"] == 1)
    @rule(data=st.data())
    def add(self, data):
        step = self.step(self.lanes[0], data)
        self.replay.add(*step)
        self.lanes[0].add(step)
        self.unseen[0].append(step)

    @rule(data=st.data())
    def add_batch(self, data):
        steps = [self.step(lane, data) for lane in self.lanes]
        mask = data.draw(st.lists(st.booleans(), min_size=len(steps), max_size=len(steps)))
        columns = (np.array(column) for column in zip(*steps, strict=True))
        self.replay.add_batch(*columns, mask=None if all(mask) else np.array(mask))
        for lane, unseen, step, chosen in zip(self.lanes, self.unseen, steps, mask, strict=True):
            if chosen:
                lane.add(step)
                unseen.append(step)

    @rule()
    def look(self):
        there = [{step.action for step in lane.steps()} for lane in self.lanes]
        expected = [
            (env, step)
            for env, steps in enumerate(self.unseen)
            for step in steps
            if step.action in there[env]
        ]
        self.lost += sum(map(len, self.unseen)) - len(expected)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = self.replay.new_rows()
        self.look_again()
        assert self.replay.lost_rows == self.lost
        assert (rows is None) == (not expected)
        if rows is not None:
            assert rows.task == self.task and rows.env.tolist() == [env for env, _ in expected]
            columns = (rows.observation, rows.action, rows.reward, rows.next_observation)
            for found, column in zip(
                (*columns, rows.terminated, rows.truncated), as_columns([s for _, s in expected]), strict=True
            ):
                assert found.tolist() == column
            assert set(rows.discount.tolist()) == {0.5}

    @rule(task=TASKS, ended=st.booleans())
    def switch(self, task, ended):
        if ended and self.task is not None:
            self.replay.end_task()
            counts = np.array([len(lane.steps()) for lane in self.lanes])
            shares = fair_shares(counts, self.settings["warm_start"])
            if self.settings["warm_start"]:
                self.stored[self.task] = [
                    lane.newest(share) for lane, share in zip(self.lanes, shares, strict=True)
                ]
        self.replay.begin_task(task)
        self.task = task
        self.lanes = copy.deepcopy(self.stored.get(task)) or self.empty()
        self.look_again()

    @rule(task=TASKS)
    def forget(self, task):
        self.replay.forget(task)
        self.stored.pop(task, None)
        if task == self.task:
            self.task, self.lanes = None, self.empty()
            self.look_again()

    @rule()
    def clear(self):
        self.replay.clear()
        self.lanes = self.empty()
        self.look_again()

    @rule(count=st.integers(1, 6))
    def save_and_load(self, count):
        other = self.make(seed=1)
        other.add_batch(*(np.zeros(self.settings["num_envs"], np.uint8) for _ in range(6)))
        other.load_state_dict(copy.deepcopy(self.replay.state_dict()))
        assert other.task == self.task
        assert other.stored == self.replay.stored
        if len(self.replay) >= count:
            assert same_batch(other.sample(count), self.replay.sample(count))
        self.replay = other

    @rule(share=st.floats(0.01, 1.0), priority=st.floats(0.0, 10.0))
    def sample(self, share, priority):
        if len(self.replay):
            batch = self.replay.sample(max(1, int(share * len(self.replay))))
            assert batch.task == self.task
            check_rows(batch, self.expected())
            self.replay.update_priorities(batch.index, np.full(len(batch), priority))

    def expected(self):
        return expected_rows(self.lanes, self.settings["n_step"], self.settings["gamma"])

    @invariant()
    def holds_what_the_lists_hold(self):
        expected = expected_rows(self.lanes, 1, self.settings["gamma"])
        assert len(self.replay) == len(expected)
        if expected:
            batch = rows_of(self.replay)
            assert sorted(batch.action.tolist()) == sorted(expected)
            check_rows(batch, expected)


ReplayMachine.TestCase.settings = settings(max_examples=70, stateful_step_count=30, deadline=None)
TestReplayMachine = ReplayMachine.TestCase
