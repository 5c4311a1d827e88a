"""Each policy loss at numbers worked out by hand: its value, its slope, and where it says it was blocked. Masks
that take the policy gradient from tokens, and DAPO's soft overlong punishment at its own numbers."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.algo.masks import entropy_threshold, high_entropy_keep, off_policy_keep
from grpo_core.config.run import RunConfig
from grpo_core.config.yaml_text import parse_yaml
from grpo_core.losses.clip import clipped
from grpo_core.losses.settings import LOSSES
from grpo_core.rewards.kinds.soft_overlong import soft_overlong_punishment
from tests.core.algo.toy import PAIRS, algorithm, gradient, policy_weights, surrogate, tokens_of
from tests.tables import cases

FIELDS = ("loss", "settings", "ratios", "log_ratios", "old", "groups", "advantages", "expected")


@pytest.mark.parametrize(FIELDS, cases("algo/losses", *FIELDS))
def test_worked_by_hand(loss, settings, ratios, log_ratios, old, groups, advantages, expected):
    config = algorithm(loss, **(settings or {}))
    logs = log_ratios or [[math.log(ratio) for ratio in row] for row in ratios]
    tokens = tokens_of(logs, advantages, old=old)
    result = surrogate(tokens, config)
    lengths = [len(row) for row in logs]
    weights = policy_weights(lengths, config, groups=groups or [0] * len(logs))
    actual = {
        "loss": result.loss_N.tolist(),
        "slope": gradient(tokens, config),
        "low": result.clipped_low_N.tolist(),
        "high": result.clipped_high_N.tolist(),
        "weighted": (result.loss_N * weights[tokens.rows_N]).sum().item(),
        "weighted_slope": gradient(tokens, config, weights),
    }
    assert {name: actual[name] for name in expected} == {
        name: value if name in ("low", "high") else pytest.approx(value, rel=1e-9) for name, value in expected.items()
    }


def test_a_ratio_at_a_bound_is_not_held_back():
    ratios = torch.tensor([0.5, 0.75, 1.0, 1.25, 1.5, 1.75])
    for sign, low, high in ((-1, [0], [5]), (0, [], []), (1, [], [4, 5])):
        held = clipped(ratios, sign * torch.ones(6), low=0.25, high=0.25, delta=1.5)
        assert held.clipped_low_N.nonzero().flatten().tolist() == low
        assert held.clipped_high_N.nonzero().flatten().tolist() == high


def test_two_sided_clipping_is_dual_clip():
    # Dual clip, for negative A: −max(min(r·A, clip(r)·A), c·A).
    def dual(r, a, bound):
        plain = min(r * a, min(max(r, 0.8), 1.2) * a)
        return -max(plain, bound * a) if a < 0 else -plain

    for bound in (1.21, 3.0, 4.0):
        for r in (0.01, 0.5, 0.8, 1.0, 1.2, 1.3, 2.99, 3.01, 4.0, 5.0, 100.0):
            for a in (-2.0, -1.0, 0.0, 1.0, 2.0):
                loss = surrogate(tokens_of([[math.log(r)]], [a]), algorithm("clip", clip_delta=bound)).loss_N.item()
                assert loss == pytest.approx(dual(r, a, bound))


def test_vespo_of_a_weight_too_large_for_the_number_format_is_0():
    for length, sign in ((3000, 1.0), (3000, -1.0)):
        tokens = tokens_of([[0.5] * length], [sign])  # w = e^1500
        assert gradient(tokens, algorithm("vespo")) == [0.0] * length
    tokens = tokens_of([[-0.5] * 3000], [1.0])  # w = e^−1500, φ → 0
    assert gradient(tokens, algorithm("vespo")) == [0.0] * 3000
    free = algorithm("vespo", vespo={"k_positive": 0.0, "lambda_positive": 0.0})  # φ = 1 whatever w
    assert gradient(tokens_of([[0.5] * 3000], [1.0]), free) == [-1.0] * 3000


def test_dppo_near_certainty_is_no_accident_of_rounding():
    # In float32 log π of a token with π within 6e-8 of 1 is 0. From 0.9999 to there is a KL below 0.002; from there to
    # there is no distance at all; from 0.5 to there is one of 0.5·log(0.5) + 0.5·log(0.5/1e-7), about 7.
    before = torch.tensor([math.log(0.9999), 0.0, math.log(0.5)])
    tokens = replace(
        tokens_of([[0.0, 0.0, 0.0]], [1.0]),
        logprobs_N=torch.zeros(3, requires_grad=True),
        old_logprobs_N=before,
        advantages_N=torch.ones(3),
    )
    config = algorithm("dppo", dppo={"divergence": "kl", "threshold": 0.05})
    assert surrogate(tokens, config).clipped_high_N.tolist() == [False, False, True]
    assert gradient(tokens, config) == pytest.approx([-1 / 0.9999, -1.0, 0.0])


# ---------------------------------------------------------------------- what holds for all


LENGTHS, ADVANTAGES = [1, 3, 2], [1.5, -0.5, -1.0]
WEIGHTS = {
    "sequence_mean": [1 / 3, 1 / 9, 1 / 6],
    "token_mean": [1 / 6] * 3,
    "local_token_mean": [1 / 8, 1 / 8, 1 / 4],  # parts of rows (0, 1) and (2): 1/(2·4) and 1/(2·2)
    "constant": [1 / 30] * 3,
    "sequence_sum": [1 / 3] * 3,
    "sequence_total": [1, 1 / 3, 1 / 2],
}
"""What a token of each of three rows counts, by the formula of each way of averaging."""


@pytest.mark.parametrize(("loss", "aggregation"), PAIRS)
def test_at_ratio_1_value_and_gradient_are_those_of_the_policy(loss, aggregation):
    tokens = tokens_of([[0.0] * length for length in LENGTHS], ADVANTAGES)
    config = algorithm(loss, aggregation)
    # The product of a whole row moves with each of its tokens, so its slope is −A at each, not −A/length.
    times = LENGTHS if loss == "sequence_ratio" else [1, 1, 1]
    slopes = [-a * w * n for a, w, n in zip(ADVANTAGES, WEIGHTS[aggregation], times, strict=True)]
    expected = [slope for slope, length in zip(slopes, LENGTHS, strict=True) for _ in range(length)]
    weights = policy_weights(LENGTHS, config)
    assert gradient(tokens, config, weights) == pytest.approx(expected, rel=1e-12)
    if loss in ("cispo", "vespo", "reinforce", "sapo"):  # whose value there is another
        return
    # The loss is minus the weighted advantage: 0 where each completion counts alike, though the gradient is not.
    value = -sum(a * w * n for a, w, n in zip(ADVANTAGES, WEIGHTS[aggregation], LENGTHS, strict=True))
    assert (value == pytest.approx(0.0)) == (aggregation in ("sequence_mean", "sequence_total"))
    assert (surrogate(tokens, config).loss_N * weights[tokens.rows_N]).sum().item() == pytest.approx(value, abs=1e-15)


@pytest.mark.parametrize("loss", list(LOSSES))
def test_nothing_to_learn_from_advantage_0_and_from_no_tokens(loss):
    config = algorithm(loss)
    tokens = tokens_of([[0.5, -0.5], [0.1]], [0.0, 0.0])
    assert gradient(tokens, config) == [0.0] * 3
    result = surrogate(tokens_of([], []), config)
    assert result.loss_N.shape == result.clipped_low_N.shape == result.clipped_high_N.shape == (0,)


@pytest.mark.parametrize("loss", list(LOSSES))
def test_a_loss_keeps_the_format_of_its_tokens(loss):
    tokens = tokens_of([[0.3, -0.2], [0.1]], [1.0, -1.0])
    single = replace(
        tokens,
        logprobs_N=tokens.logprobs_N.detach().float().requires_grad_(),
        old_logprobs_N=tokens.old_logprobs_N.float(),
        advantages_N=tokens.advantages_N.float(),
    )
    result = surrogate(single, algorithm(loss))
    assert result.loss_N.dtype == torch.float32
    assert result.clipped_low_N.dtype == result.clipped_high_N.dtype == torch.bool
    assert result.loss_N.tolist() == pytest.approx(surrogate(tokens, algorithm(loss)).loss_N.tolist(), rel=1e-6)


def test_a_long_row_is_summed_exactly_enough_in_float32():
    # 30,000 tokens of log-ratio 1e-4, off by 1e-8 in float32: the mean is 1e-4 to within that.
    old = torch.full((30_000,), -1.0)
    tokens = replace(
        tokens_of([[0.0] * 30_000], [1.0]),
        logprobs_N=(old + 1e-4).requires_grad_(),
        old_logprobs_N=old,
        advantages_N=torch.ones(30_000),
    )
    each = (tokens.logprobs_N - old)[0].item()
    loss = surrogate(tokens, algorithm("gspo", clip_low=3e-4, clip_high=4e-4)).loss_N[0].item()
    assert loss == pytest.approx(-math.exp(each), abs=1e-7)
    product = surrogate(tokens, algorithm("sequence_ratio")).loss_N[0].item()
    assert product == pytest.approx(-math.exp(30_000 * each), rel=1e-5)


# ---------------------------------------------------------------------- the pages on losses

PAGES = sorted((Path(__file__).resolve().parents[3] / "docs/losses").glob("*.md"))
PARTS = {"model": {"path": "models/demo"}, "data": {"path": "train.jsonl"}, "eval": {"holdout": 8}}
PARTS["reward"] = {"components": [{"name": "right", "kind": "numeric"}, {"name": "sums", "kind": "equations"}]}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_run_accepts_the_configurations_of_a_page(page):
    for snippet in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        given = parse_yaml(snippet)
        config = RunConfig.from_dict({**PARTS, **given})
        for name, value in given.get("algorithm", {}).items():
            assert isinstance(value, dict) or getattr(config.algorithm, name) == value


# ---------------------------------------------------------------------- masks and the soft overlong punishment


def test_a_bad_completion_that_became_unlikely_is_dropped_whole():
    # Mean of log π_old − log π: rows 0.5, 0.5 (A > 0), 0.3, −0.5, and 0.5 with A = 0.
    log_ratios = [[-0.9, -0.1], [-0.9, -0.1], [-0.3], [0.5, 0.5, 0.5], [-0.5]]
    tokens = tokens_of(log_ratios, [-1.0, 1.0, -1.0, -1.0, 0.0])
    assert off_policy_keep(tokens, 0.4).tolist() == [False, False] + [True] * 7
    assert off_policy_keep(tokens, 0.25).tolist() == [False, False, True, True, False] + [True] * 4
    assert off_policy_keep(tokens, 0.6).all()
    assert not off_policy_keep(tokens, 0.4).requires_grad
    assert off_policy_keep(tokens_of([[-0.5, -0.5]], [-1.0]), 0.5).all()  # at the threshold itself
    assert not off_policy_keep(tokens_of([[-0.5, -0.500001]], [-1.0]), 0.5).any()
    assert off_policy_keep(tokens_of([[-0.9, -0.1]], [[-1.0, 2.0]]), 0.4).tolist() == [False, True]  # token by token


@pytest.mark.parametrize(
    ("share", "threshold", "kept"),
    [(0.2, 0.9, 2), (0.21, 0.8, 3), (0.1, 1.0, 1), (1e-6, 1.0, 1), (0.5, 0.6, 5), (1.0, 0.1, 10)],
)
def test_the_share_of_highest_entropy(share, threshold, kept):
    entropies = torch.tensor([0.3, 1.0, 0.1, 0.6, 0.9, 0.2, 0.8, 0.5, 0.4, 0.7], dtype=torch.float64)
    assert entropy_threshold(entropies, share) == pytest.approx(threshold)
    assert high_entropy_keep(entropies, entropy_threshold(entropies, share)).sum().item() == kept


def test_the_share_is_a_decimal_number_and_ties_are_all_kept():
    # 0.07·100 is 7.000000000000001 and 0.29·100 is 28.999999999999996 in floating point.
    entropies = torch.arange(100, dtype=torch.float64)
    for share, kept in ((0.07, 7), (0.29, 29), (0.57, 57)):
        assert high_entropy_keep(entropies, entropy_threshold(entropies, share)).sum().item() == kept
    entropies = torch.tensor([2.0, 1.0, 1.0, 1.0, 0.0])
    assert entropy_threshold(entropies, 0.4) == 1.0
    assert high_entropy_keep(entropies, 1.0).tolist() == [True, True, True, True, False]
    assert entropy_threshold(torch.empty(0), 0.2) == -math.inf


@given(
    st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5, 3.0]), min_size=1, max_size=40),
    st.sampled_from([0.05, 0.2, 0.25, 1 / 3, 0.5, 0.9, 1.0]),
)
def test_never_fewer_than_the_share_and_never_one_below_another(values, share):
    entropies = torch.tensor(values)
    keep = high_entropy_keep(entropies, entropy_threshold(entropies, share))
    assert keep.sum().item() >= share * len(values) - 1e-9
    distinct = {value for value, kept in zip(values, keep.tolist(), strict=True) if kept}
    assert all(value in distinct or value < min(distinct) for value in values)
    if len(set(values)) == len(values):
        assert keep.sum().item() == math.ceil(share * len(values) - 1e-9)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(1, 0.0), (16384, 0.0), (16385, -1 / 4096), (18432, -0.5), (20479, -4095 / 4096), (20480, -1.0), (30000, -1.0)],
)
def test_soft_overlong_punishment(tokens, expected):
    reward = soft_overlong_punishment(tokens, max_tokens=20480, buffer_tokens=4096)
    assert reward == pytest.approx(expected, abs=1e-12)
    assert str(reward) != "-0.0"
