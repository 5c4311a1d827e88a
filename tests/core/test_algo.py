"""Advantages, losses, KL and aggregation against numbers worked out by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.algo.advantages import group_advantages
from grpo_core.algo.aggregation import row_weights
from grpo_core.algo.kl import kl_estimate
from grpo_core.algo.losses import clipped_surrogate


def advantages(rewards, *, scored=None, scale="group_std", ddof=0, eps=0.0):
    tensor = torch.tensor(rewards, dtype=torch.float64)
    mask = torch.ones_like(tensor, dtype=torch.bool) if scored is None else torch.tensor(scored)
    return group_advantages(tensor, mask, scale=scale, ddof=ddof, eps=eps)


SIX_OF_TEN = [[1.0] * 6 + [0.0] * 4]


@pytest.mark.parametrize(
    ("ddof", "eps", "right", "wrong"),
    [
        (0, 0.0, 0.816497, -1.224745),  # (1−0.6)/√0.24 and (0−0.6)/√0.24
        (0, 1e-4, 0.816330, -1.224495),
        (1, 0.0, 0.774597, -1.161895),  # variance 2.4/9
        (1, 1e-4, 0.774447, -1.161670),
    ],
)
def test_six_of_ten_right(ddof, eps, right, wrong):
    result = advantages(SIX_OF_TEN, ddof=ddof, eps=eps)
    assert result.advantages_PG[0, 0].item() == pytest.approx(right, abs=1e-6)
    assert result.advantages_PG[0, 9].item() == pytest.approx(wrong, abs=1e-6)
    assert result.mean_P.tolist() == pytest.approx([0.6])
    assert result.std_P.tolist() == pytest.approx([math.sqrt(0.24 if ddof == 0 else 2.4 / 9)])
    assert result.signals == ("mixed",)


@pytest.mark.parametrize(("ddof", "right", "wrong"), [(0, 1.731651, -0.577217), (1, 1.499700, -0.499900)])
def test_one_of_four_right(ddof, right, wrong):
    result = advantages([[1.0, 0.0, 0.0, 0.0]], ddof=ddof, eps=1e-4)
    assert result.advantages_PG[0].tolist() == pytest.approx([right, wrong, wrong, wrong], abs=1e-6)


def test_mean_only_leaves_the_size_of_rewards():
    result = advantages(SIX_OF_TEN, scale="none")
    assert result.advantages_PG[0].tolist() == pytest.approx([0.4] * 6 + [-0.6] * 4)


def test_batch_std_divides_every_group_by_the_same_number():
    # Rewards 1,0 | 3,1: batch mean 1.25, variance (0.0625+1.5625+3.0625+0.0625)/4 = 1.1875.
    result = advantages([[1.0, 0.0], [3.0, 1.0]], scale="batch_std")
    std = math.sqrt(1.1875)
    assert result.advantages_PG.flatten().tolist() == pytest.approx([0.5 / std, -0.5 / std, 1 / std, -1 / std])


@pytest.mark.parametrize("scale", ["group_std", "batch_std", "none"])
@pytest.mark.parametrize("value", [0.0, 1.0, 0.3, -2.5])
def test_equal_rewards_give_exactly_zero(scale, value):
    result = advantages([[value] * 8, [0.0, 1.0] * 4], scale=scale, eps=0.0)
    assert result.advantages_PG[0].tolist() == [0.0] * 8
    assert result.advantages_PG[1].abs().min() > 0
    assert result.signals == ("all_equal", "mixed")


def test_float_noise_in_equal_rewards_is_no_signal():
    noisy = torch.tensor([0.1, 0.2, 0.3]).sum().item()  # 0.6 with float32 noise
    assert noisy != 0.6
    result = advantages([[noisy, 0.6, 0.6, 0.6]], eps=0.0)
    assert result.advantages_PG.tolist() == [[0.0] * 4]
    assert result.signals == ("all_equal",)
    # Ten times the tolerance is a difference again.
    assert advantages([[0.60001, 0.6, 0.6, 0.6]], eps=0.0).signals == ("mixed",)


def test_a_masked_sample_moves_neither_mean_nor_std():
    result = advantages([[1.0, 0.0, 99.0, 1.0, 0.0]], scored=[[True, True, False, True, True]])
    assert result.advantages_PG[0].tolist() == pytest.approx([1.0, -1.0, 0.0, 1.0, -1.0])
    assert result.mean_P.item() == pytest.approx(0.5)


@pytest.mark.parametrize("scored", [[False] * 4, [True, False, False, False]])
def test_fewer_than_two_scored_samples_are_no_group(scored):
    result = advantages([[5.0, 1.0, 2.0, 3.0]], scored=[scored], ddof=1)
    assert result.advantages_PG.tolist() == [[0.0] * 4]
    assert result.signals == ("unscored",)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=16), st.sampled_from([0, 1]))
def test_advantages_sum_to_zero_and_keep_the_order(rewards, ddof):
    values = advantages([rewards], ddof=ddof, eps=1e-4).advantages_PG[0].tolist()
    assert math.fsum(values) == pytest.approx(0.0, abs=1e-6)
    for (r1, a1), (r2, a2) in zip(
        zip(rewards, values, strict=True), list(zip(rewards, values, strict=True))[1:], strict=False
    ):
        assert r1 == r2 or any(values) is False or (a1 > a2) == (r1 > r2) or math.isclose(a1, a2, abs_tol=1e-9)


def surrogate(ratio, advantage, *, low=0.2, high=0.2):
    logprob = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    result = clipped_surrogate(
        logprob, torch.zeros(1, dtype=torch.float64), torch.tensor([advantage]), clip_low=low, clip_high=high
    )
    result.loss_N.sum().backward()
    return result, logprob.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "high", "loss", "gradient", "low_clipped", "high_clipped"),
    [
        (1.5, 1.0, 0.2, -1.2, 0.0, False, True),
        (1.5, -1.0, 0.2, 1.5, 1.5, False, False),
        (0.5, 1.0, 0.2, -0.5, -0.5, False, False),
        (0.5, -1.0, 0.2, 0.8, 0.0, True, False),
        (1.5, 1.0, 0.28, -1.28, 0.0, False, True),
        (1.25, 1.0, 0.28, -1.25, -1.25, False, False),
        (1.25, 1.0, 0.2, -1.2, 0.0, False, True),
    ],
)
def test_clip(ratio, advantage, high, loss, gradient, low_clipped, high_clipped):
    result, slope = surrogate(ratio, advantage, high=high)
    assert result.loss_N.item() == pytest.approx(loss)
    assert slope == pytest.approx(gradient)  # d loss / d log π = −r·A where not clipped
    assert (result.clipped_low_N.item(), result.clipped_high_N.item()) == (low_clipped, high_clipped)


@pytest.mark.parametrize(
    ("d", "k1", "k2", "k3"), [(0.5, -0.5, 0.125, 0.148721), (-0.5, 0.5, 0.125, 0.106531), (0.0, 0.0, 0.0, 0.0)]
)
def test_kl_estimators(d, k1, k2, k3):
    policy, reference = torch.tensor([-1.0], dtype=torch.float64), torch.tensor([-1.0 + d], dtype=torch.float64)
    found = [kl_estimate(policy, reference, name).item() for name in ("k1", "k2", "k3")]
    assert found == pytest.approx([k1, k2, k3], abs=1e-6)


def test_kl_gradients_pull_the_right_way():
    # π above π_ref by 0.5: k2' = log π − log π_ref = 0.5, k3' = 1 − e^−0.5, k1' = 1 whatever the distance.
    for name, slope in (("k1", 1.0), ("k2", 0.5), ("k3", 1 - math.exp(-0.5))):
        policy = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
        kl_estimate(policy, torch.zeros(1, dtype=torch.float64), name).sum().backward()
        assert policy.grad.item() == pytest.approx(slope)


def total(per_token, lengths, used, how, constant=None):
    weights = row_weights(lengths, used, how, constant)
    return sum(w * value * n for w, value, n in zip(weights.tolist(), per_token, lengths, strict=True))


@pytest.mark.parametrize(
    ("how", "constant", "expected"), [("sequence_mean", None, 0.0), ("token_mean", None, -0.5), ("constant", 10, -0.2)]
)
def test_aggregation(how, constant, expected):
    # Completion a: 2 tokens of loss 1. Completion b: 6 tokens of loss −1.
    assert total([1.0, -1.0], [2, 6], [True, True], how, constant) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("how", "constant", "expected"), [("sequence_mean", None, 0.0), ("token_mean", None, -0.5), ("constant", 10, -0.2)]
)
def test_masked_completions_are_in_no_denominator(how, constant, expected):
    assert total([1.0, 50.0, -1.0], [2, 9, 6], [True, False, True], how, constant) == pytest.approx(expected)


def test_nothing_used_weighs_nothing():
    assert row_weights([3, 4], [False, False], "token_mean").tolist() == [0.0, 0.0]
