"""Denominators: what each way of averaging makes of rows, masks, signals and parts, worked out by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.algo.aggregation import row_weights
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
