"""What must not matter to an advantage, whatever the rewards: order, a constant, a factor, masked samples, noise.

Rewards are whole numbers times ¹⁄₁₆, so that sums of them are exact and two groups that should give the same differ by
no more than the rounding of a few divisions: 1e-9 leaves room for all of it.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tables import cases

from .scores import advantages_of, token_values, values

OUTCOME = [case.values[0] for case in cases("algo/outcome_advantages", "algorithm")]
COMPARING = [one for one in OUTCOME if one["advantage"] not in ("reinforce", "maxrl")]
Z_SCORES = [one for one in COMPARING if one.get("scale", "group_std") != "none" and not one.get("advantage_eps")]
LINEAR = [one for one in OUTCOME if one.get("scale") == "none" and one["advantage"] in ("group", "rloo")]

sixteenths = st.integers(-160, 160).map(lambda n: n / 16)
groups = st.lists(sixteenths, min_size=2, max_size=8)
steps = st.lists(groups, min_size=1, max_size=4)
few = settings(max_examples=15)


def assert_near(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("algorithm", OUTCOME, ids=str)
@few
@given(step=steps, seed=st.integers(0, 1000))
def test_order_within_and_of_groups_does_not_matter(algorithm, step, seed):
    chance = random.Random(seed)
    orders = [chance.sample(range(len(group)), len(group)) for group in step]
    turned = chance.sample(range(len(step)), len(step))
    lengths = [[1 + i % 3 for i in range(len(group))] for group in step]
    before = values(advantages_of(step, lengths=lengths, **algorithm))
    after = values(
        advantages_of(
            [[step[p][g] for g in orders[p]] for p in turned],
            lengths=[[lengths[p][g] for g in orders[p]] for p in turned],
            **algorithm,
        )
    )
    sizes = [len(step[p]) for p in turned]
    assert_near(
        [row[:size] for row, size in zip(after, sizes, strict=True)],
        [[before[p][g] for g in orders[p]] for p in turned],
    )


@pytest.mark.parametrize("algorithm", COMPARING, ids=str)
@few
@given(step=steps, constant=st.integers(-100, 100))
def test_adding_a_constant_to_all_rewards_changes_nothing(algorithm, step, constant):
    moved = [[reward + constant for reward in group] for group in step]
    assert_near(values(advantages_of(moved, **algorithm)), values(advantages_of(step, **algorithm)))


@pytest.mark.parametrize("algorithm", [*Z_SCORES, *LINEAR], ids=str)
@few
@given(step=steps, factor=st.sampled_from([0.25, 3.0, 1000.0]))
def test_a_factor_changes_no_z_score_and_scales_the_others(algorithm, step, factor):
    times = factor if algorithm in LINEAR else 1
    after = values(advantages_of([[reward * factor for reward in group] for group in step], **algorithm))
    assert_near(after, [[times * value for value in row] for row in values(advantages_of(step, **algorithm))])


@pytest.mark.parametrize("algorithm", OUTCOME, ids=str)
@few
@given(rewards=groups, masked=st.lists(sixteenths, min_size=1, max_size=3), seed=st.integers(0, 1000))
def test_masked_samples_change_nothing_and_get_0(algorithm, rewards, masked, seed):
    places = sorted(random.Random(seed).sample(range(len(rewards) + len(masked)), len(masked)))
    mixed, scored = list(rewards), [True] * len(rewards)
    for place, value in zip(places, masked, strict=True):
        mixed.insert(place, value)
        scored.insert(place, False)
    [after] = values(advantages_of([mixed], scored=[scored], **algorithm))
    assert [after[i] for i in range(len(mixed)) if not scored[i]] == [0.0] * len(masked)
    left = [after[i] for i in range(len(mixed)) if scored[i]]
    assert_near([left], values(advantages_of([rewards], **algorithm)))


@pytest.mark.parametrize("algorithm", [one for one in OUTCOME if one["advantage"] != "reinforce"], ids=str)
@few
@given(value=st.floats(-100, 100, width=32), noise=st.lists(st.sampled_from([-1, 0, 1]), min_size=2, max_size=8))
def test_equal_rewards_with_float32_noise_give_exactly_0(algorithm, value, noise):
    # A float32 has 24 bits: neighbours are 2⁻²⁴ to 2⁻²³ of their size apart, 6e-8 to 1.2e-7.
    rewards = [value + sign * 1.2e-7 * abs(value) for sign in noise]
    result = advantages_of([rewards], **algorithm)
    assert values(result) == [[0.0] * len(rewards)]
    assert (result.signals, result.informative_P.tolist()) == (("all_equal",), [False])


def gdpo(components, **algorithm):
    """`components` [c][g]: rewards of one group."""
    rewards = [[sum(column) for column in zip(*components, strict=True)]]
    inputs = {"components_CPG": [[row] for row in components], "weights_C": [1.0] * len(components)}
    return values(advantages_of(rewards, inputs=inputs, multi_objective_aggregation="normalize_then_sum", **algorithm))


@pytest.mark.parametrize("algorithm", [{}, {"std_ddof": 1, "advantage_eps": 1e-4}])
@few
@given(
    rows=st.lists(st.tuples(sixteenths, sixteenths), min_size=2, max_size=8),
    constant=st.integers(-100, 100),
    seed=st.integers(0, 1000),
)
def test_gdpo_permutes_with_its_group_and_forgets_a_constant(algorithm, rows, constant, seed):
    order = random.Random(seed).sample(range(len(rows)), len(rows))
    first, second = map(list, zip(*rows, strict=True))
    [before] = gdpo([first, second], **algorithm)
    turned = gdpo([[first[i] for i in order], [second[i] for i in order]], **algorithm)
    assert_near(turned, [[before[i] for i in order]])
    assert_near(gdpo([[r + constant for r in first], second], **algorithm), [before])


@few
@given(
    rewards=st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=4), min_size=2, max_size=5),
    constant=st.integers(-10, 10),
    seed=st.integers(0, 1000),
)
def test_process_advantages_permute_with_their_group_and_forget_a_constant(rewards, constant, seed):
    def process(group):
        numbered = [[(2 * n, value) for n, value in enumerate(own)] for own in group]
        lengths, inputs = [[2 * len(own) + 1 for own in group]], {"step_rewards": [numbered]}
        result = advantages_of([[0.0] * len(group)], lengths=lengths, inputs=inputs, supervision="process")
        return token_values(result)[0]

    before = process(rewards)
    order = random.Random(seed).sample(range(len(rewards)), len(rewards))
    assert_near(process([rewards[i] for i in order]), [before[i] for i in order])
    assert_near(process([[r + constant for r in own] for own in rewards]), before)
