"""Masks that take the policy gradient from tokens (off-policy completions, low entropy), and DAPO's soft overlong
punishment at its own numbers."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.algo.losses.masks import entropy_threshold, high_entropy_keep, off_policy_keep
from grpo_core.algo.overlong import soft_overlong_punishment
from tests.core.algo.toy import tokens_of


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
