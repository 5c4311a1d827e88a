"""Denominators: what each way of averaging makes of rows, masks, signals and parts, worked out by hand. Correction
between sampler and trainer, and what is recorded about it, at ratios chosen by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.algo.aggregation import row_weights
from grpo_core.algo.correction import SamplerFacts, merged, sampler_correction
from grpo_core.config.algorithm import CorrectionConfig
from tests.core.algo.toy import algorithm, rows
from tests.tables import cases

ALL = ("sequence_mean", "token_mean", "local_token_mean", "constant", "sequence_sum", "sequence_total")
FIELDS = ("aggregation", "lengths", "given", "policy", "penalty")


def weights(lengths, aggregation, *, settings=None, **flags):
    """By any loss that goes with the aggregation: the weights do not ask which."""
    loss = {"sequence_sum": "luspo", "sequence_total": "sequence_ratio"}.get(aggregation, "clip")
    by_row = row_weights(rows(lengths, **flags), algorithm(loss, aggregation, **(settings or {})))
    return by_row.policy_B.tolist(), by_row.penalty_B.tolist()


@pytest.mark.parametrize(FIELDS, cases("algo/aggregation", *FIELDS))
def test_worked_by_hand(aggregation, lengths, given, policy, penalty):
    assert weights(lengths, aggregation, **(given or {})) == (policy, penalty)


def test_parts_of_one_completion_are_grpo_and_one_part_is_dapo():
    lengths = [3, 7, 1, 11]
    for how in ALL:  # and with the denominator `all` a signal changes nothing
        assert weights(lengths, how, informative=[True, False, False, True]) == weights(lengths, how)
    assert weights(lengths, "local_token_mean", settings={"local_batch": 1}) == weights(lengths, "sequence_mean")
    assert weights(lengths, "local_token_mean", settings={"local_batch": 4}) == weights(lengths, "token_mean")


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 50), st.booleans(), st.booleans()), min_size=1, max_size=20))
def test_a_loss_of_1_everywhere(made):
    """Every mean gives 1, the constant the mean length over the constant, the sum the mean length, the total B."""
    lengths, used, informative = (list(column) for column in zip(*made, strict=True))
    for denominator in ("all", "informative"):
        counts = [u and (i or denominator == "all") for u, i in zip(used, informative, strict=True)]
        b, tokens = sum(counts), sum(n for n, c in zip(lengths, counts, strict=True) if c)
        expected = {
            "sequence_mean": 1,
            "token_mean": 1,
            "local_token_mean": 1,
            "constant": tokens / b / 10 if b else 0,
            "sequence_sum": tokens / b if b else 0,
            "sequence_total": b,
        }
        for how, value in expected.items():
            policy, _ = weights(lengths, how, settings={"denominator": denominator}, used=used, informative=informative)
            assert sum(w * n for w, n in zip(policy, lengths, strict=True)) == pytest.approx(value if b else 0)
            assert [w > 0 for w in policy] == counts


@settings(max_examples=25)
@given(st.permutations(list(range(5))))
def test_the_order_of_completions_does_not_matter_but_for_local_parts(order):
    lengths, used, groups = [2, 6, 4, 9, 1], [True, True, False, True, True], [0, 0, 1, 1, 1]
    for how in set(ALL) - {"local_token_mean"}:
        policy, penalty = weights(lengths, how, used=used, groups=groups)
        shuffled = weights(
            [lengths[i] for i in order], how, used=[used[i] for i in order], groups=[groups[i] for i in order]
        )
        assert shuffled == ([policy[i] for i in order], [penalty[i] for i in order])


# ---------------------------------------------------------------------- correction between sampler and trainer


RATIOS = [[1.5, 0.5], [4.0, 1.0, 0.25], [2.5], [0.998, 1.003]]
"""Geometric means: √0.75 = 0.866, 1, 2.5, √1.000994 = 1.0005."""


def correct(ratios=RATIOS, *, rows=None, **parts):
    flat = [value for row in ratios for value in row]
    sampler = torch.full((len(flat),), -2.0, dtype=torch.float64)
    old = sampler + torch.tensor(flat, dtype=torch.float64).log()
    rows_N = torch.repeat_interleave(torch.tensor([len(row) for row in ratios], dtype=torch.int64))
    count = len(ratios) if rows is None else rows
    return sampler_correction(
        old.requires_grad_(), sampler, rows_N, rows=count, config=CorrectionConfig.model_validate(parts)
    )


def test_none_changes_nothing_and_tells_all():
    corrected = correct(mode="none")
    assert corrected.weights_N.tolist() == [1.0] * 8
    assert corrected.keep_R.tolist() == [True] * 4
    facts = corrected.facts
    assert (facts.tokens, facts.rows) == (8, 4)
    assert facts.ratio_sum == pytest.approx(1.5 + 0.5 + 4 + 1 + 0.25 + 2.5 + 0.998 + 1.003)
    assert (facts.ratio_min, facts.ratio_max) == (pytest.approx(0.25), pytest.approx(4.0))
    logs = [math.log(3), 2 * math.log(4), math.log(2.5), math.log(1.003 / 0.998)]  # |log 1.5| + |log 0.5| = log 3
    assert facts.difference_sum == pytest.approx(sum(logs))
    assert facts.difference_max == pytest.approx(math.log(4))
    assert (facts.dropped_rows, facts.dropped_tokens, facts.truncated_tokens) == (0, 0, 0)


def test_token_truncate_weighs_by_the_ratio_up_to_the_cap():
    corrected = correct(mode="token_truncate", cap=2.0)
    assert corrected.weights_N.tolist() == pytest.approx([1.5, 0.5, 2.0, 1.0, 0.25, 2.0, 0.998, 1.003])
    assert corrected.keep_R.tolist() == [True] * 4
    assert corrected.facts.truncated_tokens == 2
    assert corrected.facts.ratio_max == pytest.approx(4.0)  # as it was, not as it was cut
    assert not corrected.weights_N.requires_grad


def test_sequence_mask_leaves_out_completions_by_their_geometric_mean():
    corrected = correct(mode="sequence_mask", low=0.99, high=1.01)
    assert corrected.weights_N.tolist() == [1.0] * 8
    assert corrected.keep_R.tolist() == [False, True, False, True]
    assert (corrected.facts.dropped_rows, corrected.facts.dropped_tokens) == (2, 3)
    assert correct(mode="sequence_mask", low=0.5, high=2.49).keep_R.tolist() == [True, True, False, True]
    assert corrected.facts.ratio_sum == pytest.approx(correct(mode="none").facts.ratio_sum)
    # 1.001 per token: the product over 5,000 tokens is 148, the geometric mean 1.001 still.
    assert correct([[1.001] * 5000], mode="sequence_mask").keep_R.tolist() == [True]
    assert correct([[1.02] * 2], mode="sequence_mask").keep_R.tolist() == [False]


def test_rows_without_tokens_and_no_rows_at_all():
    corrected = correct([[1.5]], rows=3, mode="sequence_mask")
    assert corrected.keep_R.tolist() == [False, True, True]
    empty = correct([], mode="token_truncate")
    assert empty.weights_N.shape == (0,)
    assert empty.facts == SamplerFacts() == merged([])


@settings(max_examples=25)
@given(
    st.lists(st.lists(st.floats(0.05, 20), min_size=1, max_size=5), min_size=1, max_size=8),
    st.sampled_from(["none", "token_truncate", "sequence_mask"]),
    st.integers(1, 4),
)
def test_parts_add_up_to_the_whole(ratios, mode, size):
    whole = correct(ratios, mode=mode)
    parts = [correct(ratios[at : at + size], mode=mode) for at in range(0, len(ratios), size)]
    together = merged(part.facts for part in parts)
    for name in SamplerFacts.__dataclass_fields__:
        assert getattr(together, name) == pytest.approx(getattr(whole.facts, name))
    assert torch.cat([part.weights_N for part in parts]).tolist() == pytest.approx(whole.weights_N.tolist())
    assert torch.cat([part.keep_R for part in parts]).tolist() == whole.keep_R.tolist()
