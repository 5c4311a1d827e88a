"""Rewards to advantages, against cases worked by hand: tests/cases/review/advantages.yaml."""

import math
from typing import Any

import pytest

from cohort.review import arithmetic
from cohort.review.arithmetic import VARIANTS, Step, Variant, best_of, number, work_out
from cohort.review.estimators import own_of
from grpo_core.config_algorithm import AlgorithmConfig
from tests.tables import cases

FIELDS = ("variant", "rewards", "options", "advantages", "parts", "note")


def variant_of(name: str) -> Variant:
    """By the name of the constant, or `best of K` and `best of K, divided`."""
    if name.startswith("best of "):
        k, *divided = name.removeprefix("best of ").split(", ")
        return best_of(int(k), divided=bool(divided))
    found: Variant = getattr(arithmetic, name)
    return found


@pytest.mark.parametrize(FIELDS, cases("review/advantages", *FIELDS))
def test_advantages_and_how_they_are_told(
    variant: str,
    rewards: list[float | None],
    options: dict[str, Any],
    advantages: list[Any] | None,
    parts: list[str] | None,
    note: str | None,
) -> None:
    step = Step(**options["step"]) if "step" in options else None
    worked = work_out(rewards, variant_of(variant), **{"eps": 0.0, **options, "step": step})
    if advantages is None:
        assert worked is None
        return
    assert worked is not None
    assert [one is None for one in worked.advantages] == [one is None for one in advantages]
    scored = [(reward, one) for reward, one in zip(rewards, worked.advantages, strict=True) if one is not None]
    expected = [one for one in advantages if one is not None]
    assert [one for _, one in scored] == (pytest.approx(expected) if any(expected) else expected)
    assert dict(worked.outcomes) == {number(reward): one for reward, one in scored}
    assert [*worked.parts] == parts
    assert (note in worked.note) if note else worked.note == ""


def test_a_step_of_rewards() -> None:
    assert Step.of([1.0, 0.0, None]) == Step(0.5, 0.5, equal=False)
    sample, noisy = Step.of([1.0, 0.0], ddof=1), Step.of([0.3, 0.1 + 0.2])
    assert sample is not None
    assert noisy is not None
    assert sample.std == pytest.approx(math.sqrt(0.5))
    assert noisy.equal
    assert Step.of([1.0, None]) is None


@pytest.mark.parametrize(("algorithm", "variant"), cases("review/estimators", "algorithm", "variant"))
def test_the_estimator_of_a_run(algorithm: dict[str, Any], variant: str | None) -> None:
    """Where rewards do not tell the advantages, nothing is worked out and a sentence says so."""
    own = own_of(AlgorithmConfig.model_validate(algorithm))
    assert len({offered.id for offered in own.offered}) == len(own.offered)
    if variant is None:
        assert "stored" in own.sentence
        assert own.variant not in VARIANTS
        assert own.offered == (own.variant, *VARIANTS)
    else:
        assert (own.variant, own.sentence) == (variant_of(variant), "")
        assert own.offered[0] == own.variant or own.variant in VARIANTS


def test_numbers_are_short_and_have_a_real_minus() -> None:
    given = (0.2, 1.0, -0.0, -1.5, 0.48412292, 1e-9)
    assert [number(value) for value in given] == ["0.2", "1", "0", "−1.5", "0.4841", "1e−9"]
