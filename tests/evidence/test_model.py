"""ModelEvidence: models in closed form, scored in one pass, saved and loaded."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from owlrl import ModelEvidence, OwlWrapper, Transitions
from owlrl.checkpoint import load_state, save_state
from owlrl.errors import NonFiniteError, OwlError, OwlStateError
from owlrl.evidence import cautious_loss, find_categories, ridge_fit
from owlrl.evidence.model import RandomFeatures, _evened
from owlrl.learners import one_hot_cells
from owlrl.protocols import Evidence
from tests.own_dqn import Signs, make_script, train


def walk(
    step: float, *, pay: float = 0.0, n: int = 600, seed: int = 0, continuous: bool = False
) -> Transitions:
    """A point in a plane is pushed along the first axis; ``pay`` times the second is the reward."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    action = rng.uniform(-1, 1, size=(n, 1)) if continuous else rng.integers(2, size=n)
    push = action[:, 0] if continuous else 2.0 * action - 1
    following = x + np.column_stack([step * push, np.zeros(n)])
    return Transitions(
        torch.tensor(x, dtype=torch.float32),
        torch.tensor(action, dtype=torch.float32 if continuous else torch.int64),
        torch.tensor(pay * x[:, 1], dtype=torch.float32),
        torch.tensor(following, dtype=torch.float32),
        torch.zeros(n, dtype=torch.bool),
        torch.full((n,), 0.9),
    )


def fitted(*tasks: Transitions, **arguments) -> ModelEvidence:
    evidence = ModelEvidence(seed=0, features=128, **arguments)
    for head, rows in enumerate(tasks):
        evidence.calibrate(None, head, rows)
    return evidence


def test_satisfies_the_protocol():
    assert isinstance(ModelEvidence(), Evidence)


def test_ridge_fit_solves_its_problem():
    rng = np.random.default_rng(0)
    x, y, weight = rng.normal(size=(20, 4)), rng.normal(size=(20, 3)), rng.uniform(0.5, 2, size=20)
    found, factor = ridge_fit(x, y, weight, ridge=0.1)
    # at the minimum the gradient of the penalised sum is zero
    gradient = np.zeros_like(found)
    for row in range(20):
        gradient += weight[row] * np.outer(x[row], x[row] @ found - y[row])
    np.testing.assert_allclose(gradient + 0.1 * weight.sum() * found, 0.0, atol=1e-10)
    gram = sum(w * np.outer(row, row) for w, row in zip(weight, x, strict=True))
    np.testing.assert_allclose(factor @ factor.T, gram + 0.1 * weight.sum() * np.eye(4), atol=1e-10)


def test_ridge_fit_in_pieces_is_that_of_the_whole():
    rng = np.random.default_rng(0)
    x, y, weight = rng.normal(size=(9_001, 3)), rng.normal(size=(9_001, 2)), rng.uniform(0.5, 2, size=9_001)
    gram = (x * weight[:, None]).T @ x + 0.1 * weight.sum() * np.eye(3)
    whole = np.linalg.solve(gram, (x * weight[:, None]).T @ y)
    np.testing.assert_allclose(ridge_fit(x, y, weight, ridge=0.1)[0], whole, atol=1e-10)


@pytest.mark.parametrize("continuous", [False, True])
def test_tasks_that_move_differently_are_told_apart(continuous):
    tasks = [walk(1.0, continuous=continuous), walk(-1.0, continuous=continuous)]
    evidence = fitted(*tasks)
    for truth, step in enumerate((1.0, -1.0)):
        losses = evidence.losses(None, walk(step, seed=5, continuous=continuous), [0, 1])
        assert losses.shape == (2, 600) and np.isfinite(losses).all() and (losses >= 0).all()
        right, wrong = losses[truth], losses[1 - truth]
        assert right.mean() < 0.3 * wrong.mean()


def test_tasks_that_pay_differently_are_told_apart():
    evidence = fitted(walk(1.0, pay=0.1), walk(1.0, pay=-0.1))
    losses = evidence.losses(None, walk(1.0, pay=-0.1, seed=5), [0, 1]).mean(1)
    assert losses[1] < 0.3 * losses[0]


def test_losses_are_errors_in_units_of_the_models_own():
    """Against plain float64, number by number; the features are the evidence's."""
    evidence = fitted(walk(1.0, pay=0.5), walk(-1.0))
    rows = walk(1.0, pay=0.5, seed=9, n=7)
    x = evidence._features(evidence._map, rows).astype(np.float64)
    y = evidence._outcomes(evidence._map, rows).astype(np.float64)
    for head in (0, 1):
        model, link = (evidence.fitted[head][part].astype(np.float64) for part in ("model", "link"))
        for row in range(7):
            error = [y[row, k] - float(model[k] @ x[row]) for k in range(3)]
            error[2] -= float(link @ y[row, :2])
            leverage = sum(float(probe @ x[row]) ** 2 for probe in model[3:])
            surprise = np.sqrt((error[0] ** 2 + error[1] ** 2) / 2)
            expected = 0.0
            width = np.sqrt(max(1.0, leverage))
            far, paid = surprise / evidence.scales[head][0], abs(error[2]) / evidence.scales[head][1]
            expected += max(min(far, 1.0), min(far, far / width + 0.5 * np.log(width), 5.0))
            expected += max(min(paid, 1.0), min(paid / width, 5.0))
            assert evidence.losses(None, rows, [head])[0, row] == pytest.approx(expected, rel=2e-3, abs=2e-3)


def test_the_reward_is_predicted_from_what_came_next_as_well():
    """Least squares on features and next observation at once, in float64, gives the same errors."""
    rng = np.random.default_rng(0)
    rows = walk(1.0)
    rows = replace(rows, next_observation=rows.next_observation + torch.from_numpy(rng.normal(size=(600, 2))))
    rows = replace(
        rows, reward=(rows.next_observation @ torch.tensor([2.0, -1.0], dtype=torch.float64)).float()
    )
    rows = replace(rows, next_observation=rows.next_observation.float())
    evidence = fitted(rows, ridge=1e-7)
    kept = evidence.fitted[0]
    x, y = (part(evidence._map, rows).astype(np.float64) for part in (evidence._features, evidence._outcomes))
    order = np.random.default_rng([evidence.seed, 0]).permutation(600)[:540]
    weight = np.sqrt(_evened(y[order, -1], np.ones(540)))[:, None]
    whole = np.linalg.lstsq(
        weight * np.column_stack([x, y[:, :2]])[order], weight[:, 0] * y[order, 2], rcond=None
    )[0]
    expected = np.column_stack([x, y[:, :2]]) @ whole
    np.testing.assert_allclose(x @ kept["model"][2] + y[:, :2] @ kept["link"], expected, atol=2e-2)
    # what no model of observation and action could know
    assert evidence.scales[0][1] < 0.1 * float(rows.reward.std())


def test_heads_are_scored_in_the_order_asked_for():
    evidence = fitted(walk(1.0), walk(-1.0), walk(0.0))
    rows = walk(1.0, seed=3, n=5)
    np.testing.assert_allclose(
        evidence.losses(None, rows, [2, 0]),
        evidence.losses(None, rows, [0, 1, 2])[[2, 0]],
        rtol=1e-5,
        atol=1e-5,
    )


def test_wide_observations_are_projected():
    rows = walk(1.0, n=50)
    wide = torch.zeros(50, 5, 40)
    wide[:, 0, :2] = rows.observation
    rows = Transitions(wide, rows.action, rows.reward, wide.roll(1, 0), rows.terminated, rows.discount)
    evidence = ModelEvidence(seed=0, outputs=8, features=32)
    evidence.calibrate(None, 0, rows)
    assert evidence.fitted[0]["model"].shape == (8 + 1 + 4, 1 + 8 + 32)
    assert evidence.losses(None, rows, [0]).shape == (1, 50)


def test_a_task_with_more_actions_may_come_later():
    few = walk(1.0)
    more = replace(few, action=few.action + 5)
    evidence = fitted(few, more)
    assert np.isfinite(evidence.losses(None, more[:9], [0, 1])).all()


@pytest.mark.parametrize("reward", [0.0, 1e6, 1e-12])
def test_rewards_of_any_size_are_finite(reward):
    evidence = fitted(walk(1.0, pay=reward), walk(1.0, pay=-reward))
    losses = evidence.losses(None, walk(1.0, pay=reward, seed=2), [0, 1])
    assert np.isfinite(losses).all() and losses.max() <= 10.0


def test_constant_observations_and_one_row_are_enough_to_go_on():
    row = walk(1.0, n=1)
    evidence = fitted(row)
    assert np.isfinite(evidence.losses(None, row, [0])).all()


def test_columns_that_hardly_change_are_not_blown_up():
    x = np.column_stack([np.arange(100.0), np.arange(100.0) * 10, np.zeros(100)])
    scale = RandomFeatures.measure(torch.from_numpy(x), None, features=4, outputs=4, seed=0).scale
    assert scale[0] == scale[2] == np.median(x.std(axis=0)[:2]) and scale[1] == x[:, 1].std()


def test_the_same_seed_gives_the_same_losses_and_another_does_not():
    rows = walk(1.0, n=100)
    one, two = fitted(rows), fitted(rows)
    np.testing.assert_array_equal(one.losses(None, rows, [0]), two.losses(None, rows, [0]))
    other = ModelEvidence(seed=1, features=128)
    other.calibrate(None, 0, rows)
    assert (one.losses(None, rows, [0]) != other.losses(None, rows, [0])).any()


def test_the_global_generators_are_left_alone():
    numpy_before, torch_before = np.random.get_state()[1:3], torch.get_rng_state()
    fitted(walk(1.0)).losses(None, walk(1.0), [0])
    keys, place = np.random.get_state()[1:3]
    assert (keys == numpy_before[0]).all() and place == numpy_before[1]
    assert torch.equal(torch.get_rng_state(), torch_before)


def test_state_goes_through_a_file(tmp_path):
    evidence = fitted(walk(1.0, pay=1.0), walk(-1.0))
    save_state(tmp_path / "evidence", evidence.state_dict())
    again = ModelEvidence(features=128)
    again.load_state_dict(load_state(tmp_path / "evidence"))
    rows = walk(1.0, seed=4)
    np.testing.assert_array_equal(again.losses(None, rows, [0, 1]), evidence.losses(None, rows, [0, 1]))
    assert again.scales == evidence.scales


def test_an_empty_state_is_loaded_too():
    evidence = fitted(walk(1.0))
    evidence.load_state_dict(ModelEvidence(seed=3).state_dict())
    assert evidence.scales == {} and evidence.seed == 3


def test_bad_states_change_nothing():
    evidence = fitted(walk(1.0))
    before = evidence.losses(None, walk(1.0), [0])
    good = fitted(walk(1.0)).state_dict()
    own = good["heads"]["0"]
    unlinked = {name: part for name, part in own.items() if name != "link"}
    for state, words in (
        ({}, "heads is missing"),
        ({**good, "heads": {"0": {**own, "model": np.zeros((2, 2))}}}, "have shapes"),
        ({**good, "heads": {"0": {**own, "link": np.zeros(5)}}}, "have shapes"),
        ({**good, "heads": {"0": {"scale": [1.0, 1.0]}}}, "expected a model and two scales"),
        ({**good, "heads": {"0": unlinked}}, "saved by an earlier version, calibrate it again"),
    ):
        with pytest.raises(OwlError, match=words):
            evidence.load_state_dict(state)
    np.testing.assert_array_equal(evidence.losses(None, walk(1.0), [0]), before)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"features": 0}, "features is 0"),
        ({"outputs": 1.5}, "outputs is 1.5"),
        ({"ridge": 0.0}, "ridge is 0.0"),
        ({"clip": float("nan")}, "clip is nan"),
        ({"encode": 3}, "encode is 3"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_bad_arguments_are_refused(arguments, words):
    with pytest.raises(OwlError, match=words):
        ModelEvidence(**arguments)


def test_heads_without_a_model_and_rows_that_are_not_finite_are_refused():
    evidence = fitted(walk(1.0))
    with pytest.raises(OwlStateError, match=r"heads \[1\] were never calibrated"):
        evidence.losses(None, walk(1.0), [0, 1])
    rows = walk(1.0)
    rows.reward[3] = torch.nan
    with pytest.raises(NonFiniteError, match="reward"):
        evidence.calibrate(None, 0, rows)
    with pytest.raises(NonFiniteError, match="reward"):
        evidence.losses(None, rows, [0])


def test_an_encoder_of_the_wrong_shape_is_named():
    with pytest.raises(OwlError, match="encode returned shape"):
        fitted(walk(1.0), encode=lambda observation: observation.sum())


# --- categories -------------------------------------------------------------------------------------


def cells(n: int, seed: int, *, shift: int = 1) -> Transitions:
    """Images of 3×3 cells with an object, a colour and a state; an action rolls the objects by ``shift``."""
    rng = np.random.default_rng(seed)
    image = rng.integers(0, [5, 3, 2], size=(n, 3, 3, 3)).astype(np.uint8)
    action = rng.integers(2, size=n)
    following = np.where((action == 1)[:, None, None, None], np.roll(image, shift, axis=2), image)
    as_tensors = (torch.from_numpy(part) for part in (image, action))
    zeros = torch.zeros(n)
    return Transitions(*as_tensors, zeros, torch.from_numpy(following), zeros > 1, torch.ones(n))


@pytest.mark.parametrize(
    ("observation", "found"),
    [
        (torch.tensor([[0.0, 1.0]]), None),
        (torch.tensor([[True, False]]), None),
        (torch.arange(17)[:, None].expand(17, 2), None),
        (torch.tensor([[0, 5], [40, 5]]), None),
        (torch.tensor([[-1, 5], [1, 5]], dtype=torch.int8), [[-1, 1], [5]]),
        (torch.arange(500), [list(range(500))]),
        (torch.arange(2000), None),
        (torch.zeros(2, 64, 64, dtype=torch.uint8), [[0]] * 64),
        (torch.arange(2, dtype=torch.uint8)[:, None, None].expand(2, 64, 65), None),  # too wide
        (torch.tensor([[[[1, 7]], [[2, 7]]]]), [[1, 2], [7]]),
    ],
)
def test_categories_are_small_integers(observation, found):
    assert find_categories(observation) == found


def test_one_hot_columns_equal_a_loop():
    seen, more = cells(40, 0).observation, cells(6, 1).observation
    more[0, 0, 0, 0] = 200
    more[1, 2, 2, 1] = 9
    categories = find_categories(seen)
    features = RandomFeatures.measure(seen, categories, features=4, outputs=1000, seed=0)
    got = features.project(more)
    columns = [
        [(cell, channel, value) for channel in range(3) for value in categories[channel]] for cell in range(9)
    ]
    names = [name for cell in columns for name in cell]
    flat_seen, flat = seen.reshape(40, 9, 3).numpy(), more.reshape(6, 9, 3).numpy()
    mean = np.array([(flat_seen[:, cell, channel] == value).mean() for cell, channel, value in names])
    deviation = np.sqrt(mean * (1 - mean))
    scale = np.maximum(deviation, np.median(deviation[deviation > 0]))
    hot = np.array([[flat[b, cell, channel] == value for cell, channel, value in names] for b in range(6)])
    np.testing.assert_allclose(got.numpy(), (hot - mean) / scale, atol=1e-5)


def test_images_of_categories_are_told_apart_as_with_an_encoder():
    evidence, told = ModelEvidence(seed=0), ModelEvidence(encode=one_hot_cells, seed=0)
    seen = cells(50, 9)
    for one in (evidence, told):
        for head, shift in enumerate((1, 2)):
            one.calibrate(None, head, cells(3_000, head, shift=shift))
        losses = one.losses(None, seen, [0, 1]).mean(1)
        assert losses[0] < 0.5 * losses[1]


def test_what_is_a_category_is_decided_once_and_saved(tmp_path):
    evidence = ModelEvidence(seed=0)
    evidence.calibrate(None, 0, cells(200, 0))
    later = cells(200, 1)
    later.observation[:, 0, 0, 0] = 250  # no small integer, and in no column
    evidence.calibrate(None, 1, later)
    save_state(tmp_path / "evidence", evidence.state_dict())
    again = ModelEvidence()
    again.load_state_dict(load_state(tmp_path / "evidence"))
    as_floats = replace(later, observation=later.observation.float())
    for rows in (later, as_floats):
        assert np.isfinite(again.losses(None, rows, [0, 1])).all()
        np.testing.assert_array_equal(again.losses(None, rows, [0, 1]), evidence.losses(None, later, [0, 1]))


def test_observations_that_are_one_integer():
    state = torch.arange(300) % 10
    action = torch.arange(300) // 10 % 2
    made = [
        Transitions(
            state, action, torch.zeros(300), (state + s * (2 * action - 1)) % 10, state > 10, torch.ones(300)
        )
        for s in (1, 2)
    ]
    evidence = fitted(*made)
    for truth, rows in enumerate(made):
        assert evidence.losses(None, rows, [0, 1]).mean(1).argmin() == truth


def test_several_integers_as_one_action():
    rows = walk(1.0)
    rows = replace(rows, action=torch.stack([rows.action, 1 - rows.action], dim=1))
    assert fitted(rows).losses(None, rows, [0]).mean() < 1.0


# --- weights, scale of rewards, what was not seen ------------------------------------------------------


def test_a_row_of_weight_two_is_two_rows():
    rows = walk(1.0, pay=1.0, n=40)
    weight = torch.ones(40)
    weight[:10] = 2.0
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.random.default_rng(1).normal(size=(40, 2))
    doubled = np.concatenate([np.arange(10), np.arange(40)])
    one = ridge_fit(x, y, weight.numpy().astype(float), ridge=0.1)[0]
    np.testing.assert_allclose(one, ridge_fit(x[doubled], y[doubled], np.ones(50), ridge=0.1)[0], atol=1e-12)
    assert fitted(replace(rows, weight=weight)).scales != fitted(rows).scales


def test_rows_of_no_weight_do_not_count():
    good, bad = walk(1.0, n=500), walk(-1.0, n=500, seed=1)
    both = [torch.cat([getattr(good, f), getattr(bad, f)]) for f in ("observation", "action", "reward")]
    mixed = Transitions(
        *both,
        torch.cat([good.next_observation, bad.next_observation]),
        torch.zeros(1000, dtype=torch.bool),
        torch.ones(1000),
        weight=torch.cat([torch.full((500,), 2.0), torch.zeros(500)]),
    )
    evidence = fitted(mixed, walk(-1.0))
    losses = evidence.losses(None, walk(1.0, seed=5), [0, 1]).mean(1)
    assert losses[0] < 0.3 * losses[1]


@pytest.mark.parametrize("size", [0.01, 100.0])
def test_rewards_of_any_scale_give_the_same_decisions(size):
    found = []
    for factor in (1.0, size):
        tasks = [walk(1.0, pay=pay * factor) for pay in (0.1, -0.1, 0.3)]
        found.append(fitted(*tasks).losses(None, walk(1.0, pay=-0.1 * factor, seed=5), [0, 1, 2]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-2, atol=1e-3)
    assert found[1].mean(1).argmin() == 1


def test_cautious_loss_equals_the_formula():
    rng = np.random.default_rng(0)
    error, leverage = rng.exponential(3.0, size=(4, 5)), rng.exponential(5.0, size=(4, 5))
    got = cautious_loss(error, 2.0, leverage, clip=3.0)
    for place in np.ndindex(4, 5):
        ratio = error[place] / 2.0
        widened = min(ratio / max(1.0, leverage[place]) ** 0.5, 3.0)
        assert got[place] == pytest.approx(max(min(ratio, 1.0), widened))


def test_a_guess_pays_a_toll():
    rng = np.random.default_rng(1)
    error, leverage = rng.exponential(3.0, size=(4, 5)), rng.exponential(5.0, size=(4, 5))
    got = cautious_loss(error, 2.0, leverage, clip=3.0, toll=0.7)
    for place in np.ndindex(4, 5):
        ratio, width = error[place] / 2.0, max(1.0, leverage[place]) ** 0.5
        widened = min(ratio, ratio / width + 0.7 * np.log(width), 3.0)
        assert got[place] == pytest.approx(max(min(ratio, 1.0), widened))


@pytest.mark.parametrize("toll", [0.0, 0.5, 2.0])
def test_a_guess_is_between_an_error_of_the_models_own_size_and_the_plain_error(toll):
    error, leverage = np.meshgrid(np.linspace(0, 9, 40), np.geomspace(0.1, 1e6, 40))
    got = cautious_loss(error, 1.0, leverage, toll=toll)
    assert (got >= np.minimum(error, 1.0)).all() and (got <= np.minimum(error, 5.0)).all()


def test_the_leverage_is_near_that_of_the_whole_matrix():
    rows = walk(1.0)
    evidence = fitted(rows)
    probes = evidence.fitted[0]["model"][3:]
    x = evidence._features(evidence._map, rows).astype(np.float64)
    order = np.random.default_rng([evidence.seed, 0]).permutation(600)[:540]
    gram = x[order].T @ x[order] + evidence.ridge * 540 * np.eye(x.shape[1])
    exact = np.einsum("bk,bk->b", x, np.linalg.solve(gram, x.T).T)
    held_out = np.setdiff1d(np.arange(600), order)
    found = np.square(x @ probes.T).sum(1)
    assert found[held_out].mean() == pytest.approx(1.0, rel=1e-4)
    exact /= exact[held_out].mean()
    assert 0.5 < found.mean() / exact.mean() < 2.0
    far = evidence._features(evidence._map, replace(rows, observation=rows.observation * 20)).astype(
        np.float64
    )
    exact = np.einsum("bk,bk->b", far, np.linalg.solve(gram, far.T).T)
    assert np.corrcoef(np.log(np.square(far @ probes.T).sum(1)), np.log(exact))[0, 1] > 0.5


def test_a_model_is_not_ruled_out_where_it_was_never_fitted():
    near = walk(1.0)
    near = near[near.observation[:, 0] > 0]
    evidence = fitted(near)
    new = walk(1.0, seed=3)
    strange = new[new.observation[:, 0] < -1.5]
    x, y = evidence._features(evidence._map, strange), evidence._outcomes(evidence._map, strange)
    error = y - x @ evidence.fitted[0]["model"][:3].T
    plain = np.minimum(np.sqrt(np.mean(error[:, :2] ** 2, axis=1)) / evidence.scales[0][0], 5.0)
    cautious = evidence.losses(None, strange, [0])[0]
    assert plain.mean() > 2.5 and cautious.mean() < 0.75 * plain.mean()


# --- one stack, kept up to date -------------------------------------------------------------------------


def test_the_stack_is_kept_and_follows_every_change():
    evidence = fitted(walk(1.0), walk(-1.0))
    rows = walk(1.0, seed=3, n=5)
    first = evidence.losses(None, rows, [0, 1])
    stack = evidence._stack
    evidence.losses(None, rows, [0, 1])
    assert evidence._stack is stack
    evidence.calibrate(None, 1, walk(1.0))
    second = evidence.losses(None, rows, [0, 1])
    assert second[1].mean() < first[1].mean() and np.array_equal(second[0], first[0])
    state = evidence.state_dict()
    evidence.forget(1)
    with pytest.raises(OwlStateError, match=r"heads \[1\]"):
        evidence.losses(None, rows, [0, 1])
    # one model or two in a batch: kernels may round differently, depending on the processor
    np.testing.assert_allclose(evidence.losses(None, rows, [0])[0], second[0], rtol=1e-3)
    evidence.load_state_dict(state)
    np.testing.assert_array_equal(evidence.losses(None, rows, [0, 1]), second)


def test_without_a_seed_it_is_torchs_own():
    with torch.random.fork_rng():
        torch.manual_seed(11)
        state = torch.get_rng_state()
        assert ModelEvidence().seed == 11 and torch.equal(state, torch.get_rng_state())


def test_in_a_wrapper_it_finds_the_task_by_its_rewards():
    script = make_script()
    owl = OwlWrapper(script.learner(), evidence=ModelEvidence(seed=0))
    for name, shift in (("a", 0), ("b", 1)):
        with owl.task(name):
            train(script, Signs(shift), 120)
    policy = owl.policy()
    for truth, shift in (("a", 0), ("b", 1)):
        env = Signs(shift, length=12)
        obs, _ = env.reset(seed=0)
        policy.reset()
        for _ in range(12):
            action = policy.act(obs)
            following, reward, terminated, _, _ = env.step(action)
            policy.observe(obs, action, reward, following, terminated)
            obs = following
        assert policy.tasks[int(policy.probabilities.argmax())] == truth
        assert policy.probabilities.max() > 0.9
