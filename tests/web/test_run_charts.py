"""What the charts are fed: the series, thinned without losing spikes, only what is new, which charts a run has, and the
library itself; and a run's config and metrics as files.
"""

import csv
import io
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.staticfiles import finders
from django.http import HttpResponse
from django.test import Client

from cohort.runs.models import Attempt, Run, StepMetric
from cohort.web.runs.chart_groups import charts_of
from cohort.web.runs.chart_list import GROUPS, PHASES_OVERLAPPED, Chart
from cohort.web.runs.series import seams, segments
from grpo_core.config.run import RunConfig
from tests.factories.runs import Maker, add_steps, gone_on
from tests.factories.series import add_series, step_numbers
from tests.tables import cases

Series = Callable[..., dict[str, Any]]
SMALL: dict[str, Any] = {
    "model": {"path": "m"},
    "data": {"path": "d"},
    "eval": {"holdout": 1},
    "reward": {"components": [{"name": "right", "kind": "numeric"}]},
}
PAIR: list[dict[str, Any]] = [
    {"name": "answer", "kind": "numeric", "weight": 2.0},
    {"name": "format", "kind": "regex", "params": {"pattern": "x"}, "weight": 0.5},
]


@pytest.fixture
def run(maker: Maker) -> Run:
    return maker.run(state="training")


@pytest.fixture
def ask(viewer: Client, run: Run) -> Series:
    """series.json of the run."""
    return lambda **query: viewer.get(f"/p/ours/runs/{run.pk}/series.json", query).json()


def drawn(*metrics: str, **parts: Any) -> dict[str, Chart]:
    """Charts of a run that reports these."""
    groups = charts_of(RunConfig.from_dict(SMALL | parts), metrics)
    return {chart.id: chart for group in groups for chart in group.charts}


def lines(chart: Chart) -> dict[str, dict[str, float]]:
    return {line.name: dict(line.terms) for line in chart.lines}


# ---------------------------------------------------------------- the series


def test_the_series_are_the_rows_and_only_what_is_new(viewer: Client, maker: Maker, run: Run, ask: Series) -> None:
    add_steps(
        maker.attempt(run),
        [{"reward": 0.25, "reward_group_std": 0.5}, {"reward": 0.5, "entropy": 1.5}, {"reward": 0.75}],
    )
    got = ask()
    assert (got["last"], got["width"], got["step"]) == (3, 1, [1, 2, 3])
    assert got["metrics"] == {
        "reward": [0.25, 0.5, 0.75],
        "reward_group_std": [0.5, None, None],
        "entropy": [None, 1.5, None],
        **{f"seconds/{name}": [value] * 3 for name, value in (("sample", 0.9), ("update", 0.5), ("other", 0.1))},
    }, "absent is null, not 0; the total is not drawn"
    assert (got["low"], got["high"]) == ({}, {})
    times = StepMetric.objects.filter(run=run).order_by("step").values_list("at", flat=True)
    assert got["at"] == [at.timestamp() for at in times]
    assert ask(after=2)["metrics"]["reward"] == [0.75]
    assert viewer.get(f"/p/ours/runs/{run.pk}/series.json", {"after": 3}).status_code == 204
    assert len(ask(after="-1; drop")["step"]) == 3


@pytest.mark.parametrize(
    ("query", "steps"),
    [
        ({"from": 2, "to": 3}, [2, 3]),
        ({"from": 3}, [3, 4]),
        ({"to": 1}, [1]),
        ({"from": 9, "to": 12}, []),
        ({"from": 3, "to": 2}, []),
        ({"from": "x", "to": "-1"}, [1, 2, 3, 4]),
        ({"from": 0, "to": 10**17}, [1, 2, 3, 4]),
    ],
)
def test_a_range_has_its_own_steps(
    maker: Maker, run: Run, ask: Series, query: dict[str, Any], steps: list[int]
) -> None:
    add_steps(maker.attempt(run), [{"reward": step / 4} for step in range(1, 5)])
    got = ask(**query)
    assert (got["step"], got["metrics"].get("reward", [])) == (steps, [step / 4 for step in steps])


def test_many_steps_are_drawn_in_stretches_and_a_range_of_them_exactly(maker: Maker, run: Run, ask: Series) -> None:
    add_series(maker.attempt(run), 1200, {777: {"entropy": 9.0}})
    got = ask()
    assert (got["width"], len(got["step"]), got["step"][-1]) == (4, 300, 1200)
    assert max(got["high"]["entropy"]) == 9.0
    assert got["step"][got["high"]["entropy"].index(9.0)] == 780
    assert max(got["metrics"]["entropy"]) < 2, "as it last was in a stretch"
    assert "learning_rate" not in got["low"] or got["low"]["learning_rate"] != got["metrics"]["learning_rate"]
    part = ask(**{"from": 701, "to": 800})
    assert (part["width"], part["step"], part["low"]) == (1, list(range(701, 801)), {})
    assert part["metrics"]["entropy"][76] == 9.0


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
    assert (got["step"], got["metrics"]["reward"]) == ([1, 2], [0.1, 0.9])
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


# ---------------------------------------------------------------- which charts


@pytest.mark.parametrize(("reported", "shown"), cases("runs/charts", "reported", "shown"))
def test_a_run_shows_what_it_reports(reported: list[str], shown: dict[str, list[str]]) -> None:
    assert {name: list(lines(chart)) for name, chart in drawn(*reported).items()} == shown


def test_every_metric_is_in_some_chart_and_an_unknown_one_under_other() -> None:
    reported = [*step_numbers(1, random.Random(0)), "seconds/sample", "eval/held-out/score", "mine"]
    config = RunConfig.from_dict({**SMALL, "reward": {"components": PAIR}})
    groups = charts_of(config, reported)
    drawn_metrics = {name for group in groups for chart in group.charts for name in chart.metrics}
    assert drawn_metrics == {*reported, "eval/held-out/low", "eval/held-out/high"}
    other = next(group for group in groups if group.id == "other")
    assert (other.folded, [chart.title for chart in other.charts]) == (True, ["mine", "num_tokens"])
    assert [group.id for group in groups] == [
        "reward", "signal", "policy", "lengths", "optimisation", "mismatch", "time", "hardware", "evaluations", "other",
    ]  # fmt: skip


def test_the_parts_of_the_learning_signal_add_up_to_one() -> None:
    signal = drawn(*step_numbers(1, random.Random(0)))["signal"]
    numbers = step_numbers(300, random.Random(0)) | {"": 1.0}
    parts = {
        name: sum(factor * numbers[metric] for metric, factor in terms.items()) for name, terms in lines(signal).items()
    }
    assert sum(parts.values()) == pytest.approx(1.0)
    assert parts["mixed"] == pytest.approx(numbers["frac_informative"])


def test_success_is_shown_next_to_the_rest_of_the_reward() -> None:
    reported = ("reward", "rewards/answer/mean", "rewards/format/mean")
    chart = drawn(*reported, reward={"components": PAIR})["shaping"]
    assert lines(chart) == {
        "answer": {"rewards/answer/mean": 2.0},
        "the rest of the reward": {"reward": 1.0, "rewards/answer/mean": -2.0},
    }
    filtered = [PAIR[0], {**PAIR[1], "only": {"column": "source", "values": ["a"]}}]
    assert "shaping" not in drawn(*reported, reward={"components": filtered}), "rows differ in what means right"


def test_titles_and_help_follow_the_config() -> None:
    old = {"kl": {"coef": 0.1, "target": "old"}, "mini_batches": 2}
    assert drawn("kl", algorithm=old)["kl"].title == "KL to old policy"
    assert drawn("kl")["kl"].title == "KL to reference"
    ahead = drawn("seconds/sample", engine={"one_step_off": True}, algorithm={"correction": {"stale": "ratio"}})
    assert ahead["phases"].help == PHASES_OVERLAPPED


def test_evaluations_while_training_are_one_chart_with_their_intervals() -> None:
    names = [f"eval/{suite}/{part}" for suite in ("held-out", "a/b") for part in ("score", "low", "high")]
    chart = drawn(*names)["evaluations"]
    assert [(line.name, line.low, line.high) for line in chart.lines] == [
        ("a/b", "eval/a/b/low", "eval/a/b/high"),
        ("held-out", "eval/held-out/low", "eval/held-out/high"),
    ]
    assert (chart.band, chart.points) == ("95 % interval", True)


def test_every_chart_is_on_the_page_with_what_it_draws(viewer: Client, maker: Maker) -> None:
    run = maker.run(state="training", algorithm={"kl": {"coef": 0.04}})
    empty = viewer.get(f"/p/ours/runs/{run.pk}/").content.decode()
    assert ("data-chart" in empty, "Charts come with the first step." in empty) == (False, True)
    add_steps(maker.attempt(run), [{"reward": 0.25, "<b>odd": 1.0}, {"reward": 0.5, "kl": 0.01}])
    response = viewer.get(f"/p/ours/runs/{run.pk}/")
    page = response.content.decode()
    charts = [re.findall(r'data-chart="([^"]+)"', page), re.findall(r'data-group="(\w+)"', page)]
    assert charts == [["reward", "kl", "phases", "other/&lt;b&gt;odd"], ["reward", "policy", "time", "other"]]
    policy = response.headers["Content-Security-Policy"] + ";"
    assert ("script-src 'self';" in policy, "style-src-attr 'unsafe-inline'" in policy) == (True, True)
    assert "unsafe-eval" not in policy
    other = viewer.get(f"/p/ours/runs/{run.pk}/groups/")
    assert "unsafe-inline" not in other.headers["Content-Security-Policy"], "only pages with charts"
    assert ("plotly.min.js" in page, "plotly.min.js" in other.content.decode()) == (True, False)


def test_colours_of_charts_are_tokens() -> None:
    charts = [
        *drawn(*step_numbers(1, random.Random(0))).values(),
        *(chart for group in GROUPS for chart in group.charts),
    ]
    tokens = Path(str(finders.find("cohort/tokens.css"))).read_text(encoding="utf-8")
    style = Path(str(finders.find("cohort/charts.css"))).read_text(encoding="utf-8")
    for colour in {line.colour for chart in charts for line in chart.lines}:
        assert f"{colour}:" in tokens
        assert colour == "--accent" or f".legend.{colour.removeprefix('--')} i" in style


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


def test_metrics_of_one_chart_and_a_range(download: Download, maker: Maker) -> None:
    run = maker.run(state="training")
    add_steps(maker.attempt(run), [{"reward": 0.1 * step, "kl": 1.0, "entropy": 2.0} for step in range(1, 6)])
    rows = table(download(run, "metrics.csv?metric=reward&metric=seconds/sample&metric=none&from=2&to=4"))
    assert [list(row) for row in rows] == [["step", "at", "attempt", "reward", "seconds/sample"]] * 3
    assert [(row["step"], row["reward"]) for row in rows] == [("2", "0.2"), ("3", "0.30000000000000004"), ("4", "0.4")]


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
