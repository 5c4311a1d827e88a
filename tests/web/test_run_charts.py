"""What the charts are fed: the series, thinned without losing spikes, only what is new, which charts a run has, and the
library itself; and a run's config and metrics as files.
"""

import csv
import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.staticfiles import finders
from django.http import HttpResponse
from django.test import Client

from cohort.runs.models import Attempt, Run, StepMetric
from cohort.web.runs.chart_list import CHARTS, Chart, charts_of
from cohort.web.runs.charts import MAX_POINTS, thin
from cohort.web.runs.series import seams, segments
from grpo_core.config.run import RunConfig
from tests.factories.runs import Maker, add_steps, gone_on
from tests.tables import cases

Series = Callable[..., dict[str, Any]]


@pytest.fixture
def run(maker: Maker) -> Run:
    return maker.run(state="training")


@pytest.fixture
def ask(viewer: Client, run: Run) -> Series:
    """series.json of the run."""
    return lambda **query: viewer.get(f"/p/ours/runs/{run.pk}/series.json", query).json()


def drawn(metrics: dict[str, float] | None = None, **parts: Any) -> dict[str, Chart]:
    config = {
        "model": {"path": "m"},
        "data": {"path": "d"},
        "eval": {"holdout": 1},
        "reward": {"components": [{"name": "right", "kind": "numeric"}]},
    }
    return {chart.id: chart for chart in charts_of(RunConfig.from_dict(config | parts), metrics or {})}


# ---------------------------------------------------------------- the series


def test_the_series_are_the_rows_and_only_what_is_new(viewer: Client, maker: Maker, run: Run, ask: Series) -> None:
    shares = {"groups/mixed": 1.0, "groups/all_right": 0.0, "groups/all_wrong": 0.0}
    add_steps(
        maker.attempt(run),
        [{"reward": 0.25, "reward_group_std": 0.5, **shares}, {"reward": 0.5, "entropy": 1.5}, {"reward": 0.75}],
    )
    got = ask()
    assert got["last"] == 3
    assert got["charts"]["reward"] == {
        "step": [1, 2, 3],
        "reward": [0.25, 0.5, 0.75],
        "reward_group_std": [0.5, None, None],
    }
    assert got["charts"]["signal"]["step"] == [1]
    assert got["charts"]["entropy"] == {"step": [2], "entropy": [1.5]}, "absent is left out, not 0"
    assert set(got["charts"]) == {chart.id for chart in CHARTS}
    assert ask(after=2)["charts"]["reward"]["step"] == [3]
    assert viewer.get(f"/p/ours/runs/{run.pk}/series.json", {"after": 3}).status_code == 204
    assert len(ask(after="-1; drop")["charts"]["reward"]["step"]) == 3


def test_after_a_resume_everything_is_sent_anew(maker: Maker, run: Run, ask: Series) -> None:
    """The page has drawn step 3 of an attempt that is gone, and the run is at step 2 again."""
    first = maker.attempt(run)
    add_steps(first, [{"reward": 0.1}, {"reward": 0.2}, {"reward": 0.3}])
    got = ask()
    assert (got["last"], got["epoch"], got["after"], got["seams"]) == (3, "", 0, [])
    Attempt.objects.filter(pk=first.pk).update(state="lost")
    second = maker.attempt(run)
    gone_on(second, 1, reason="not heard from")
    add_steps(second, [{"reward": 0.9}], first=2)
    got = ask(after=3, epoch="")
    assert (got["epoch"], got["after"], got["last"]) == ("1:1", 0, 2)
    assert (got["charts"]["reward"]["step"], got["charts"]["reward"]["reward"]) == ([1, 2], [0.1, 0.9])
    assert got["seams"] == [{"step": 1, "attempt": 2, "why": "attempt 1 lost: not heard from"}]
    add_steps(second, [{"reward": 0.8}], first=3)
    more = ask(after=2, epoch="1:1")
    assert (more["after"], more["last"], len(more["seams"])) == (2, 3, 1)


def test_a_seam_that_no_longer_stands_is_not_drawn(maker: Maker, run: Run) -> None:
    """Attempt 2 resumed from 4, attempt 3 from 2, attempt 4 from 2 as well, before attempt 3 made a step."""
    for resumed, through in ((None, 2), (4, 2), (2, 2), (2, None)):
        attempt = maker.attempt(run, state="running" if through is None else "lost")
        Attempt.objects.filter(pk=attempt.pk).update(resumed_step=resumed, valid_through=through)
    assert [(seam.step, seam.attempt) for seam in seams(run)] == [(2, 4)]
    assert [(part.attempt.fence, part.first, part.last) for part in segments(run)] == [(1, 1, 2), (4, 3, None)]


def test_phases_rates_and_memory_are_drawn_in_their_units(maker: Maker, run: Run, ask: Series) -> None:
    rates = {"memory/peak_bytes": 2.5e9, "tokens_per_second/sample": 800.0, "tokens_per_second/update": 1500.0}
    add_steps(maker.attempt(run), [{"reward": 0.1}, {"reward": 0.2, **rates}])
    for row, seconds in zip(
        StepMetric.objects.filter(run=run).order_by("step"),
        (
            {"sample": 2.0, "reward": 0.5, "update": 1.0, "other": 0.5, "total": 4.0},
            {"sample": 1.0, "reward": 0.25, "logprobs": 0.5, "update": 0.75, "other": 0.5, "total": 3.0},
        ),
        strict=True,
    ):
        StepMetric.objects.filter(pk=row.pk).update(seconds=seconds)
    got = ask()["charts"]
    assert got["phases"]["step"] == [1, 2]
    phases = {name: got["phases"][f"seconds/{name}"] for name in ("sample", "logprobs", "other", "waiting")}
    assert phases == {"sample": [2.0, 1.0], "logprobs": [None, 0.5], "other": [0.5, 0.5], "waiting": [None, None]}
    assert got["memory"] == {"step": [2], "memory/peak_bytes": [2.5]}
    assert got["speed"]["tokens_per_second/update"] == [1500.0]
    assert got["utilisation"]["step"] == []


@pytest.mark.parametrize("count", [MAX_POINTS, 1001, 3000, 100_000])
def test_a_series_keeps_its_spikes_and_its_ends(count: int) -> None:
    values = [0.5] * count
    values[count // 3], values[count // 2] = 9.0, -9.0
    kept = thin(values, MAX_POINTS)
    assert len(kept) <= MAX_POINTS
    assert kept == sorted(set(kept))
    assert {0, count // 3, count // 2, count - 1} <= set(kept)
    assert count > MAX_POINTS or len(kept) == count, "a short one is whole"


# ---------------------------------------------------------------- which charts

ENGINE = {"phases", "speed", "memory", "utilisation"}
ALWAYS = {"reward", "signal", "entropy", "length", "zero_std", "masked", "mismatch"} | ENGINE


@pytest.mark.parametrize(("parts", "more"), cases("runs/charts", "parts", "more"))
def test_a_run_draws_what_its_config_has_numbers_for(parts: dict[str, Any], more: list[str]) -> None:
    charts = drawn(**parts)
    assert charts.keys() == ALWAYS | set(more)
    filled = 0
    for chart in charts.values():  # row by row, without a hole
        filled = (filled + chart.span) % 60
    assert filled == 0
    assert sum(chart.span for chart in list(charts.values())[:2]) == 60


def test_what_the_machine_does_not_report_is_not_drawn() -> None:
    assert drawn({"reward": 0.1, "memory/peak_bytes": 1e9}).keys() & ENGINE == {"phases", "memory"}
    assert drawn().keys() >= ENGINE, "before the first step nobody knows"
    assert "utilisation" not in drawn(engine={"device": "cpu"})


def test_every_chart_is_on_the_page_with_what_it_draws(viewer: Client, maker: Maker) -> None:
    run = maker.run(state="training", algorithm={"kl": {"coef": 0.04}})
    response = viewer.get(f"/p/ours/runs/{run.pk}/")
    page = response.content.decode()
    charts = charts_of(RunConfig.from_dict(run.config))
    assert re.findall(r'data-chart="(\w+)"', page) == [chart.id for chart in charts]
    for chart in CHARTS:
        assert len(chart.columns) == len(chart.names) == len(chart.colours)
    policy = response.headers["Content-Security-Policy"] + ";"
    assert ("script-src 'self';" in policy, "style-src-attr 'unsafe-inline'" in policy) == (True, True)
    assert "unsafe-eval" not in policy
    other = viewer.get(f"/p/ours/runs/{run.pk}/groups/")
    assert "unsafe-inline" not in other.headers["Content-Security-Policy"], "only pages with charts"
    assert ("plotly.min.js" in page, "plotly.min.js" in other.content.decode()) == (True, False)


def test_the_library_comes_from_its_package_and_nothing_else_of_it() -> None:
    path = finders.find("plotly/plotly.min.js")
    assert isinstance(path, str)
    assert path.endswith("plotly/package_data/plotly.min.js")
    assert finders.find("plotly/widgetbundle.js") is None
    listed = [path for finder in finders.get_finders() for path, _ in finder.list(None) if "plotly" in path]
    assert listed == ["plotly.min.js"]


Download = Callable[[Run, str], HttpResponse]


@pytest.fixture
def download(viewer: Client) -> Download:
    return lambda run, file: viewer.get(f"/p/ours/runs/{run.pk}/{file}")


def table(response: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(response.getvalue().decode(), newline="")))


def test_the_config_is_the_run_s_own(download: Download, maker: Maker) -> None:
    run = maker.run('a"; x=\u202e/../b', preset="dapo", seed=7)
    response = download(run, "config.yaml")
    assert response["Content-Disposition"] == f'attachment; filename="a-x-..-b-{run.pk}.config.yaml"'
    assert RunConfig.from_text(response.content.decode()).digest() == run.config_digest


def test_metrics_hold_every_step_and_metric(download: Download, maker: Maker) -> None:
    run = maker.run(state="training")
    add_steps(maker.attempt(run), [{"reward": 0.25, "kl": 0.001}, {"reward": -0.5, "entropy": 1.5}])
    rows = table(download(run, "metrics.csv"))
    names = ("step", "reward", "kl", "entropy", "seconds/total")
    assert [[row[name] for name in names] for row in rows] == [
        ["1", "0.25", "0.001", "", "1.5"],
        ["2", "-0.5", "", "1.5", "1.5"],
    ], "a negative number stays a number; absent is empty, not 0"


@pytest.mark.parametrize("name", ["=cmd()", "+1", "-1", "@x", "\tx", "\rx"], ids=repr)
def test_a_metric_named_like_a_formula_is_text(download: Download, maker: Maker, name: str) -> None:
    run = maker.run(state="training")
    add_steps(maker.attempt(run), [{name: 1.0}])
    assert list(table(download(run, "metrics.csv"))[0])[3] == f"'{name}"


def test_a_repeated_step_is_given_as_it_stands(download: Download, maker: Maker) -> None:
    run = maker.run(state="training")
    lost = maker.attempt(run, state="lost")
    add_steps(lost, [{"reward": 0.1}, {"reward": 0.2}, {"reward": 0.3}])
    Attempt.objects.filter(pk=lost.pk).update(valid_through=1)
    add_steps(maker.attempt(run), [{"reward": 0.9}], first=2)
    rows = table(download(run, "metrics.csv"))
    assert [(row["step"], row["attempt"], row["reward"]) for row in rows] == [("1", "1", "0.1"), ("2", "2", "0.9")]
    assert "superseded" not in rows[0]
    every = table(download(run, "metrics.csv?all=1"))
    assert [(row["step"], row["attempt"], row["superseded"], row["reward"]) for row in every] == [
        ("1", "1", "", "0.1"),
        ("2", "1", "superseded", "0.2"),
        ("3", "1", "superseded", "0.3"),
        ("2", "2", "", "0.9"),
    ]
