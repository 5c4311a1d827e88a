"""Refusals against labels: Cohen's κ on sets that the rules were written on, apart from them, and after them."""

import math

import pytest

from grpo_core.rewards.kinds.refusal import AGREEMENT, RefusalParams
from grpo_core.rewards.kinds.refusal_rules import refusal_words
from grpo_core.stats.agreement import Kappa, cohen_kappa
from tests.tables import cases

WITHIN = RefusalParams().within


def agreement(name: str) -> Kappa:
    rows = [row.values for row in cases(f"refusals/{name}", "completion", "refuses")]
    assert {refuses for _, refuses in rows} == {True, False}
    return cohen_kappa((refuses, bool(refusal_words(completion[:WITHIN]))) for completion, refuses in rows)


@pytest.mark.parametrize(("name", "n"), [("developed", 516), ("set_aside", 172), ("written_after", 78)])
def test_the_rules_agree_with_people(name: str, n: int) -> None:
    kappa = agreement(name)
    assert kappa.n == n
    assert kappa.value is not None
    assert kappa.value >= 0.80


def test_the_figure_that_records_give_is_the_one_measured() -> None:
    kappa = agreement("written_after")
    for known, measured in zip(
        (AGREEMENT.value, AGREEMENT.low, AGREEMENT.high, AGREEMENT.observed),
        (kappa.value, kappa.low, kappa.high, kappa.observed),
        strict=True,
    ):
        assert known is not None
        assert measured is not None
        assert math.isclose(known, measured, abs_tol=1e-6)


@pytest.mark.parametrize(("completion", "refuses"), cases("refusals/named", "completion", "refuses"))
def test_the_words_that_were_missed(completion: str, refuses: bool) -> None:
    assert bool(refusal_words(completion)) == refuses
