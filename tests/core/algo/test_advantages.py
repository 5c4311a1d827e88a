"""Every advantage at numbers worked out by hand, pass@k against every subset, the critic's loss. What must not matter
to an advantage, whatever the rewards: order, a constant, a factor, masked samples, noise.

There rewards are whole numbers times ¹⁄₁₆, so that sums of them are exact and two groups that should give the same
differ by no more than the rounding of a few divisions: 1e-9 leaves room for all of it."""

import itertools
import math
import random
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.advantages.gae import value_loss
from tests.tables import cases

from .toy import advantages_of, token_values, values


def of_case(rewards, given, algorithm):
    inputs = dict(given or {})
    rows = {name: inputs.pop(name, None) for name in ("scored", "lengths")}
    return advantages_of(rewards, inputs=inputs, **rows, **(algorithm or {}))


def assert_near(actual, expected):
    """To 1e-7 of each number; an expected integer 0 is exact."""
    if isinstance(expected, list):
        for value, wanted in zip(actual, expected, strict=True):
            assert_near(value, wanted)
    elif expected is None or (isinstance(expected, int) and expected == 0):
        assert actual == expected
    else:
        assert actual == pytest.approx(expected, rel=1e-7, abs=1e-12, nan_ok=True)


def lists(rows):
    return None if rows is None else [[steps.tolist() for steps in row] for row in rows]


@pytest.mark.parametrize(
    ("rewards", "given", "algorithm", "expected"),
    cases("algo/advantages", "rewards", "given", "algorithm", "expected"),
)
def test_worked_by_hand(rewards, given, algorithm, expected):
    result = of_case(rewards, given, algorithm)
    actual = {
        "advantages": result.advantages_PG.tolist(),
        "tokens": lists(result.tokens),
        "returns": lists(result.returns),
        "rewards": result.rewards_PG.tolist(),
        "mean": result.mean_P.tolist(),
        "std": result.std_P.tolist(),
    }
    assert expected
    for name, value in expected.items():
        if name == "signals":
            assert list(result.signals) == value
        elif name == "informative":
            assert result.informative_P.tolist() == value
        else:
            assert_near(actual[name], value)


@pytest.mark.parametrize(
    ("rewards", "given", "algorithm", "match"),
    cases("algo/advantage_defects", "rewards", "given", "algorithm", "match"),
)
def test_inputs_that_do_not_fit_are_named(rewards, given, algorithm, match):
    with pytest.raises(ValueError, match=match):
        of_case(rewards, given, algorithm)


def test_an_unscored_reward_may_be_no_number():
    assert advantages_of([[0.0, 1.0, math.nan]], scored=[[True, True, False]]).signals == ("mixed",)


@pytest.mark.parametrize("scale", ["group_std", "batch_std", "none"])
@pytest.mark.parametrize("value", [0.0, 0.3, -2.5])
def test_equal_rewards_give_exactly_zero(scale, value):
    result = advantages_of([[value] * 8, [0.0, 1.0] * 4], scale=scale)
    assert values(result)[0] == [0.0] * 8
    assert result.advantages_PG[1].abs().min() > 0
    assert (result.signals, result.informative_P.tolist()) == (("all_equal", "mixed"), [False, True])


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=16), st.sampled_from([0, 1]))
@settings(max_examples=50)
def test_advantages_sum_to_zero_and_keep_the_order(rewards, ddof):
    [row] = values(advantages_of([rewards], std_ddof=ddof, advantage_eps=1e-4))
    assert math.fsum(row) == pytest.approx(0.0, abs=1e-6)
    ranked = [advantage for _, advantage in sorted(zip(rewards, row, strict=True))]
    assert ranked == sorted(ranked)
    assert (max(row) > 0) == (max(rewards) - min(rewards) > 1e-6 * max(1.0, *map(abs, rewards)))


@pytest.mark.parametrize("advantage", ["reinforce_pp", "reinforce_pp_baseline"])
def test_no_penalty_is_the_same_as_penalties_of_0(advantage):
    rewards, lengths = [[1.0, 0.0, 0.5], [2.0, 2.0]], [[3, 1, 2], [1, 4]]
    zeros = [[[0.0] * length for length in row] + [[]] * (3 - len(row)) for row in lengths]
    settings = {"lengths": lengths, "advantage": advantage, "scale": "batch_std"}
    plain = advantages_of(rewards, **settings)
    penalized = advantages_of(
        rewards, inputs={"token_penalties": zeros}, kl={"coef": 0.1, "place": "reward"}, **settings
    )
    assert torch.equal(plain.advantages_PG != 0, penalized.advantages_PG != 0)
    torch.testing.assert_close(plain.advantages_PG, penalized.advantages_PG)


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "slope"),
    [
        (1.0, 0.5, 0.0, 0.5, 1.0),  # moved away from the target: the unclipped term is the larger
        (0.9, 0.5, 1.0, 0.045, 0.0),  # moved towards it by more than 0.2: ½(0.7 − 1)², no gradient
        (0.6, 0.5, 1.0, 0.08, -0.4),  # within 0.2: ½(0.6 − 1)²
        (0.1, 0.5, 0.0, 0.045, 0.0),
    ],
)
def test_value_loss(value, old, target, loss, slope):
    now = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    actual = value_loss(now, torch.tensor([old]).double(), torch.tensor([target]).double(), 0.2)
    actual.sum().backward()
    assert actual.tolist() == pytest.approx([loss])
    assert now.grad.tolist() == pytest.approx([slope])


# ---------------------------------------------------------------------- the best of k


def pass_at_k(rewards, k, **algorithm):
    return values(advantages_of([rewards], advantage="pass_at_k", pass_k=k, **algorithm))[0]


@given(st.lists(st.integers(-4, 4), min_size=2, max_size=7), st.integers(1, 7), st.floats(0.01, 50))
@settings(max_examples=50)
def test_it_is_what_all_subsets_give(whole, k, factor):
    rewards = [value * factor for value in whole]
    row = pass_at_k(rewards, k)
    subsets = list(itertools.combinations(range(len(rewards)), k))
    best = [max(rewards[i] for i in subset) for subset in subsets]
    if not subsets or max(best) == min(best):
        assert row == [0.0] * len(rewards)
        return
    mean = math.fsum(best) / len(best)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in best) / len(best))
    for i, advantage in enumerate(row):
        own = [value for subset, value in zip(subsets, best, strict=True) if i in subset]
        assert advantage == pytest.approx((math.fsum(own) / len(own) - mean) / std, abs=1e-9)


@pytest.mark.parametrize(("n", "wrong", "k"), [(1024, 1000, 8), (1024, 512, 512), (1024, 1023, 700), (1000, 999, 1)])
def test_it_holds_for_the_largest_groups(n, wrong, k):
    failed = Fraction(math.comb(wrong, k), math.comb(n, k))
    failed_with_it = Fraction(math.comb(wrong - 1, k - 1), math.comb(n - 1, k - 1))
    row = pass_at_k([1.0] * (n - wrong) + [0.0] * wrong, k, scale="none")
    assert row[0] == pytest.approx(float(failed), rel=1e-9, abs=1e-300)
    assert row[-1] == pytest.approx(float(failed - failed_with_it), rel=1e-9, abs=1e-300)
    scaled = pass_at_k([1.0] * (n - wrong) + [0.0] * wrong, k)
    assert scaled[0] == pytest.approx(math.sqrt(failed / (1 - failed)), rel=1e-9)


def test_real_rewards_in_a_large_group():
    # Rewards 0 to 1023: the best of k of the numbers 1 to n has mean k(n+1)/(k+1), and that of the largest is n.
    n, k = 1024, 16
    row = pass_at_k([float(i) for i in range(n)], k, scale="none")
    assert row[-1] == pytest.approx(n - k * (n + 1) / (k + 1), rel=1e-12)
    assert row[: k - 1] == pytest.approx([row[0]] * (k - 1))  # the lowest are the best of no subset
    assert all(higher > lower - 1e-9 for lower, higher in itertools.pairwise(row))


# ---------------------------------------------------------------------- what must not matter


OUTCOME = [case.values[0] for case in cases("algo/outcome_advantages", "algorithm")]
COMPARING = [each for each in OUTCOME if each["advantage"] not in ("reinforce", "maxrl")]
Z_SCORES = [each for each in COMPARING if each.get("scale", "group_std") != "none" and not each.get("advantage_eps")]
LINEAR = [each for each in OUTCOME if each.get("scale") == "none" and each["advantage"] in ("group", "rloo")]

sixteenths = st.integers(-160, 160).map(lambda n: n / 16)
groups = st.lists(sixteenths, min_size=2, max_size=8)
steps = st.lists(groups, min_size=1, max_size=4)
few = settings(max_examples=15)


def assert_same(actual, expected):
    for row, wanted in zip(actual, expected, strict=True):
        assert row == pytest.approx(wanted, rel=1e-9, abs=1e-9)


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
    assert_same(
        [row[:size] for row, size in zip(after, sizes, strict=True)],
        [[before[p][g] for g in orders[p]] for p in turned],
    )


@pytest.mark.parametrize("algorithm", COMPARING, ids=str)
@few
@given(step=steps, constant=st.integers(-100, 100))
def test_adding_a_constant_to_all_rewards_changes_nothing(algorithm, step, constant):
    moved = [[reward + constant for reward in group] for group in step]
    assert_same(values(advantages_of(moved, **algorithm)), values(advantages_of(step, **algorithm)))


@pytest.mark.parametrize("algorithm", [*Z_SCORES, *LINEAR], ids=str)
@few
@given(step=steps, factor=st.sampled_from([0.25, 3.0, 1000.0]))
def test_a_factor_changes_no_z_score_and_scales_the_others(algorithm, step, factor):
    times = factor if algorithm in LINEAR else 1
    after = values(advantages_of([[reward * factor for reward in group] for group in step], **algorithm))
    assert_same(after, [[times * value for value in row] for row in values(advantages_of(step, **algorithm))])


@pytest.mark.parametrize("algorithm", OUTCOME, ids=str)
@few
@given(rewards=groups, masked=st.lists(sixteenths, min_size=1, max_size=3), seed=st.integers(0, 1000))
def test_masked_samples_change_nothing_and_get_0(algorithm, rewards, masked, seed):
    places = sorted(random.Random(seed).sample(range(len(rewards) + len(masked)), len(masked)))
    mixed, scored = list(rewards), [True] * len(rewards)
    for index, value in zip(places, masked, strict=True):
        mixed.insert(index, value)
        scored.insert(index, False)
    [after] = values(advantages_of([mixed], scored=[scored], **algorithm))
    assert [after[i] for i in range(len(mixed)) if not scored[i]] == [0.0] * len(masked)
    left = [after[i] for i in range(len(mixed)) if scored[i]]
    assert_same([left], values(advantages_of([rewards], **algorithm)))


@pytest.mark.parametrize("algorithm", [each for each in OUTCOME if each["advantage"] != "reinforce"], ids=str)
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
    assert_same(turned, [[before[i] for i in order]])
    assert_same(gdpo([[r + constant for r in first], second], **algorithm), [before])


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
    assert_same(process([rewards[i] for i in order]), [before[i] for i in order])
    assert_same(process([[r + constant for r in own] for own in rewards]), before)


def test_rloo_is_exact_to_float64():
    """4/3 of a difference of thirds: a factor of whole numbers divided as float32 gave 0.4444444656."""
    result = advantages_of([[1 / 3, 0.0, 0.0, 0.0]], advantage="rloo", scale="none")
    assert result.advantages_PG[0].tolist() == pytest.approx([1 / 3, -1 / 9, -1 / 9, -1 / 9], rel=1e-15)


@pytest.mark.parametrize(("gate", "gated"), [("success", True), ("reward", False)])
def test_a_group_in_which_shaping_alone_varies(gate, gated):
    """Wherever rewards are compared in the group; the other group keeps its advantages."""
    rewards, signals = [[1.0, 0.0], [0.1, 0.0]], ["mixed", "phantom"]
    for advantage, scale in (("group", "group_std"), ("rloo", "none"), ("reinforce_pp_baseline", "batch_std")):
        result = advantages_of(
            rewards,
            advantage=advantage,
            scale=scale,
            signal_gate=gate,
            inputs={"signals": signals},
            lengths=[[2, 2]] * 2,
        )
        assert result.signals == ("mixed", "phantom")
        assert result.informative_P.tolist() == [True, not gated]
    reinforce = advantages_of(
        rewards, advantage="reinforce", scale="none", signal_gate=gate, inputs={"signals": signals}
    )
    assert reinforce.informative_P.tolist() == [True, True]  # compared with nothing, so there is nothing to gate
