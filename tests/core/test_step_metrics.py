"""Metrics of a step that are worked out by hand from its groups."""

import pytest

from grpo_core.config.algorithm import AlgorithmConfig
from grpo_core.records.types import ComponentScore, Group, Sample
from grpo_core.trainer.metrics import group_metrics


def group(*rows: tuple[int, bool | None]) -> Group:
    """Of completions by tokens and by whether the success component passed them; a `form` passes all."""
    samples = [
        Sample(
            index=index,
            completion="x",
            tokens=tokens,
            finish_reason="eos",
            reward=None if passed is None else float(passed),
            components={
                "right": ComponentScore(value=None if passed is None else float(passed), passed=passed),
                "form": ComponentScore(value=1.0, passed=True),
            },
            advantage=0.0,
        )
        for index, (tokens, passed) in enumerate(rows)
    ]
    given = {"step": 1, "index": 0, "problem_id": "p", "prompt": "?", "answer": "1", "signal": "mixed"}
    return Group(**given, reward_mean=0.5, reward_std=0.5, samples=tuple(samples))


def lengths(*groups: Group) -> dict[str, float]:
    metrics = group_metrics(groups, success=lambda names: "right", algorithm=AlgorithmConfig())
    mean = "completions/mean_length"
    return {name.removeprefix(mean): value for name, value in metrics.items() if name.startswith(mean)}


def test_lengths_of_right_and_wrong_completions_are_told_apart() -> None:
    """Right: 10 and 20, wrong: 40, 60 and 80; the one that could not be judged, of 90, is in neither."""
    got = lengths(group((10, True), (40, False), (60, False)), group((20, True), (80, False), (90, None)))
    assert got == {"": 50.0, "/right": 15.0, "/wrong": 60.0}


@pytest.mark.parametrize(("passed", "expected"), [(True, {"/right": 4.0}), (False, {"/wrong": 4.0}), (None, {})])
def test_a_length_of_none_is_absent(passed: bool | None, expected: dict[str, float]) -> None:
    assert lengths(group((3, passed), (5, passed))) == {"": 4.0, **expected}
