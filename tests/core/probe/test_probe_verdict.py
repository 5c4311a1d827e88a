"""The rules of the verdict, on numbers worked out by hand; they are the table in docs/probe.md."""

import pytest

from grpo_core.probe.report import Calibration, ClassResult
from grpo_core.probe.scoring import Told, repeats
from grpo_core.probe.verdict import HALF, holds, share_of, verdict_of, what_counts
from tests.tables import cases


def one(name, family, n, paid, *, rule="told", errors=0):
    mistakes = paid if family == "false_positive" else n - paid
    return ClassResult(
        name=name,
        title=name,
        about="any",
        family=family,
        rule=rule,
        n=n,
        paid=paid,
        rate=mistakes / n if n else None,
        wilson95=None,
        mean_share=None,
        errors=errors,
        held=holds(rule, mistakes, n),
    )


@pytest.mark.parametrize(("rule", "paid", "n", "held"), cases("probe/holds", "rule", "paid", "n", "held"))
def test_when_a_class_holds_a_verifier_back(rule, paid, n, held):
    assert holds(rule, paid, n) is held


@pytest.mark.parametrize(("right", "wrong", "counts"), cases("probe/counts", "right", "wrong", "counts"))
def test_what_counts_as_all_and_as_nothing(right, wrong, counts):
    assert what_counts(right, wrong, nominal=2.0) == tuple(counts)


def test_paid_is_more_than_half():
    """DeepSeek-R1 pays 1 for the answer and 1 for the form: the form alone is exactly half and not paid."""
    assert not share_of(1.0, 2.0, 0.0) > HALF
    assert share_of(1.01, 2.0, 0.0) > HALF
    assert not share_of(0.0, 1.0, -1.0) > HALF
    assert share_of(0.1, 1.0, -1.0) == pytest.approx(0.55)


def test_the_first_verdict_that_applies():
    right = one("as_given", "false_negative", 20, 20)
    held = one("empty", "false_positive", 20, 1, rule="any")
    clean = one("plus_one", "false_positive", 20, 1, rule="some")

    def judged(*classes, reference=right, nominal=False, unscored=0):
        basis = Calibration(form="r1", full=1.0, low=0.0, nominal=nominal, tried=())
        return verdict_of(list(classes), reference, basis, calls=100, unscored=unscored)

    def verdict(*classes, **more):
        return judged(*classes, **more)[0]

    (reason,) = judged(held, reference=None)[1]
    assert "1 of 20" in reason
    assert "empty" in reason
    assert verdict(held, clean) == "pays_wrong"
    assert verdict(held, unscored=100) == "pays_wrong"
    assert verdict(clean) == "clean"
    assert verdict(clean, unscored=5) == "clean"
    assert verdict(clean, unscored=6) == "undecided"
    assert verdict(clean, reference=None) == "undecided"
    assert verdict(clean, reference=one("as_given", "false_negative", 0, 0)) == "undecided"
    assert verdict(clean, nominal=True) == "rejects_right"
    assert verdict(clean, reference=one("as_given", "false_negative", 20, 19)) == "clean"
    assert verdict(clean, reference=one("as_given", "false_negative", 20, 18)) == "rejects_right"


def test_scored_twice():
    def told(reward, value):
        return Told(reward, reward is None, {}, {"a": value})

    first = [told(1.0, 1.0), told(0.5, 0.5), told(None, None), told(0.0, 0.0)]
    second = [told(1.0, 1.0), told(0.8, 0.8), told(0.0, 0.0), told(1e-9, 1e-9)]
    found = repeats(first, second)
    assert (found.checked, found.differ, found.share) == (4, 2, 0.5)
    assert found.largest == pytest.approx(0.3)
    assert repeats(first, []).share is None
