"""What a run says is wrong with it, on its page and in the list; and the forecast of groups with a signal."""

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from cohort.evaluations.forecast import forecast_of
from cohort.review.models import Sample
from cohort.runs.health import MonitorState, badges_of, monitor_states
from cohort.runs.models import EvalItem, EvalResult, Run, RunEvent
from grpo_core.monitors.figures import MAX_TRUNCATED
from grpo_core.monitors.table import MONITORS
from tests.factories.runs import HOSTILE, Maker, add_evaluation, add_group, add_steps
from tests.web.pages import html
from tests.web.run_page import page_of, words

CUT = "16 of 16 completions were truncated at 8 tokens."


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
    assert f"from step 1 completions truncated {CUT} Raise sampling.max_completion_tokens." in text
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
    pairs = forecast_of(run, 2)
    assert pairs is not None
    assert (pairs.group, pairs.sizes[0].group, pairs.came) == (2, 2, None), "what came is of another G"
    assert pairs.sizes[0].share == pytest.approx(1 / 3, abs=0.01)


def test_a_problem_that_was_not_scored_is_in_no_forecast(maker: Maker) -> None:
    run = maker.run(state="training", eval={"holdout": 2, "samples_per_problem": 4})
    add_evaluation(maker.attempt(run), "before", [0.5] * 10 + [0.0] * 30, suite="heldout")
    EvalItem.objects.filter(score=0).update(error="ValueError: no")
    forecast = forecast_of(run)
    assert forecast is not None
    assert forecast.problems == 10


# ---------------------------------------------------------------------- health


def states(run: Run) -> dict[str, MonitorState]:
    return {state.monitor.code: state for state in monitor_states(Run.objects.get(pk=run.pk), run.parsed_config)}


def over(run: Run, step: int, cause: str) -> None:
    data = {"cause": cause, "step": step, "last": step - 10}
    seq = RunEvent.objects.filter(run=run).count() + 1000
    whose = {"run": run, "attempt": run.attempts.get(), "at": timezone.now(), "seq": seq}
    RunEvent.objects.create(kind="diagnosis_over", message=cause, data=data, **whose)


def test_every_monitor_is_on_the_overview_with_its_figure(viewer: Client, maker: Maker) -> None:
    run = maker.run(state="training")
    add_steps(maker.attempt(run), [{"reward": 0.5, "completions/clipped_ratio": 0.25, "frac_informative": 0.5}] * 3)
    begun(run, 2, "cut_off", CUT)
    page = page_of(viewer, run)
    text = words(page)
    assert "! 1 suspect" in text
    assert f"from step 2 completions truncated {CUT} Raise sampling.max_completion_tokens. 25.0 %" in text
    assert f"raised: above {100 * MAX_TRUNCATED:g} % of completions in the last 10 steps" in text
    assert all(f'id="health-{monitor.code}"' in page for monitor in MONITORS)
    assert "lengths drift, success does not not computed: comes with step 20" in text
    assert '<a href="#chart-truncated">curve</a>' in page
    assert 'id="chart-truncated"' in page
    assert f"/p/ours/runs/{run.pk}/groups/?step=2&amp;show=truncated" in page


def test_a_cause_that_is_over_is_current_no_longer(viewer: Client, maker: Maker) -> None:
    run = maker.run(state="training")
    add_steps(maker.attempt(run), [{"reward": 0.5}])
    begun(run, 1, "cut_off", CUT)
    over(run, 21, "cut_off")
    assert CUT not in words(page_of(viewer, run))
    assert states(run)["cut_off"].event is None
    assert "completions truncated" not in html(viewer.get("/p/ours/runs/"))
    begun(run, 40, "cut_off", CUT)
    assert CUT in words(page_of(viewer, run))
    assert "completions truncated" in html(viewer.get("/p/ours/runs/"))


def test_a_cause_lasts_over_a_resumed_attempt(maker: Maker) -> None:
    """The next attempt does not report again what held in the steps that it continues from."""
    run = maker.run(state="training")
    first = maker.attempt(run)
    add_steps(first, [{"reward": 0.5}] * 4)
    begun(run, 2, "cut_off", CUT)
    first.valid_through, first.ended_at = 3, timezone.now()
    first.save(update_fields=["valid_through", "ended_at"])
    assert badges_of([run.pk])[run.pk] == ["completions truncated"]


def test_figures_are_of_the_first_and_the_newest_steps(maker: Maker) -> None:
    run = maker.run(state="training", eval={"holdout": 2, "every": 10})
    attempt = maker.attempt(run)
    rows = [{"completions/mean_length": 20.0 if step < 50 else 50.0, "entropy": 1.0} for step in range(60)]
    right = [{"completions/right": 0.1 if step < 10 else 0.6} for step in range(60)]
    add_steps(attempt, [row | share for row, share in zip(rows, right, strict=True)])
    add_evaluation(attempt, "before", [0.0, 0.0, 0.0, 1.0], suite="heldout")
    now = states(run)
    assert now["length_drift"].figure.value == pytest.approx(2.5)
    assert now["entropy_collapse"].figure.value == pytest.approx(1.0)
    assert now["reward_without_heldout"].figure.why == "heldout has not been evaluated twice yet"
    EvalResult.objects.create(
        run=run, attempt=attempt, seq=900, at=timezone.now(), phase="during", step=30, suite="heldout", problems=4,
        correct=2, truncated=0, errors=0, mean_tokens=5.0, seconds=1.0, protocol={},
    )  # fmt: skip
    assert states(run)["reward_without_heldout"].figure.value == pytest.approx(0.25 / 0.5), "steps 21 to 30"


def test_groups_with_truncated_completions(viewer: Client, maker: Maker) -> None:
    run = maker.run(state="training")
    attempt = maker.attempt(run)
    add_steps(attempt, [{"reward": 0.5}])
    whole, cut = add_group(attempt, [1.0, 0.0]), add_group(attempt, [1.0, 0.0], index=1)
    Sample.objects.filter(group=cut, index=0).update(finish_reason="length")
    page = page_of(viewer, run, "groups/", show="truncated")
    assert (f"/groups/{cut.pk}/" in page, f"/groups/{whole.pk}/" in page) == (True, False)
