"""What a run says is wrong with it, on its page and in the list; and the forecast of groups with a signal."""

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from cohort.evaluations.forecast import forecast_of
from cohort.runs.models import Run, RunEvent
from tests.factories.runs import HOSTILE, Maker, add_evaluation, add_steps
from tests.web.pages import html
from tests.web.run_page import page_of, words

CUT = "16 of 16 completions were cut off at 8 tokens."


def begun(run: Run, step: int, cause: str, text: str) -> None:
    data: dict[str, Any] = {
        "cause": cause,
        "step": step,
        "text": text,
        "advice": "Raise sampling.max_completion_tokens.",
    }
    attempt = run.attempts.get()
    RunEvent.objects.create(
        run=run, attempt=attempt, seq=step + 100, at=timezone.now(), kind="diagnosis", message=text, data=data
    )


def test_causes_are_listed_with_what_to_do(viewer: Client, maker: Maker) -> None:
    run = maker.run(state="training")
    add_steps(maker.attempt(run), [{"reward": 0.5, "frac_unscored": 0.4}])
    begun(run, 1, "cut_off", CUT)
    begun(run, 2, "all_wrong", HOSTILE)
    text = words(page_of(viewer, run))
    assert f"from step 1 {CUT} Raise sampling.max_completion_tokens." in text
    assert "from step 2" in text
    assert "40.0 % not scored" in text
    assert HOSTILE not in page_of(viewer, run)
    assert "40.0 % not scored" in words(html(viewer.get("/p/ours/runs/")))


def test_a_cause_of_steps_that_were_done_again_is_not_shown(viewer: Client, maker: Maker) -> None:
    run = maker.run(state="training")
    attempt = maker.attempt(run)
    add_steps(attempt, [{"reward": 0.5}])
    begun(run, 3, "cut_off", CUT)
    attempt.valid_through = 2
    attempt.save(update_fields=["valid_through"])
    assert CUT not in words(page_of(viewer, run))


def test_the_forecast_beside_what_came(viewer: Client, maker: Maker) -> None:
    """Uniform chances: 1 − 2/(G + 1) of groups, 60 % at G 4."""
    run = maker.run(state="training", sampling={"group_size": 4}, eval={"holdout": 2, "samples_per_problem": 4})
    attempt = maker.attempt(run)
    uniform = [share for share in (0.0, 0.25, 0.5, 0.75, 1.0) for _ in range(40)]
    add_evaluation(attempt, "before", uniform, suite="heldout")
    add_steps(attempt, [{"frac_informative": 0.5}, {"frac_informative": 0.6}])
    forecast = forecast_of(run)
    assert forecast is not None
    assert [size.group for size in forecast.sizes] == [4, 8, 16, 32, 64]
    assert [size.share for size in forecast.sizes] == pytest.approx([3 / 5, 7 / 9, 15 / 17, 31 / 33, 63 / 65], abs=0.01)
    text = words(page_of(viewer, run))
    assert "Expected from 200 held-out problems × 4, evaluated before training" in text
    assert "55 % came in the first 2 steps." in text
    assert forecast_of(maker.run(state="training")) is None
