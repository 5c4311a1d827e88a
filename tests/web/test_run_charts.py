"""What the charts are fed: the series, thinned without losing spikes, only what is new, and the library itself."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.staticfiles import finders
from django.test import Client

from cohort.accounts.models import User
from cohort.runs.buckets import point
from cohort.runs.chart_list import CHARTS, charts_of
from cohort.runs.charts import MAX_POINTS, Piece, series, thin
from cohort.runs.models import Attempt, Run, StepMetric
from cohort.runs.selectors.series import seams, segments
from grpo_core.config import RunConfig
from tests.web.run_rows import Maker, add_steps, gone_on

ClientFor = Callable[[User], Client]


def test_the_series_are_the_rows(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(state="training")
    add_steps(
        maker.attempt(run),
        [
            {
                "reward": 0.25,
                "reward_group_std": 0.5,
                "groups/mixed": 1.0,
                "groups/all_right": 0.0,
                "groups/all_wrong": 0.0,
            },
            {"reward": 0.5, "entropy": 1.5},
        ],
    )
    got = client_for(bob).get(f"/p/ours/runs/{run.pk}/series.json").json()
    assert got["last"] == 2
    assert got["charts"]["reward"] == {"step": [1, 2], "reward": [0.25, 0.5], "reward_group_std": [0.5, None]}
    assert got["charts"]["signal"]["step"] == [1]
    assert got["charts"]["entropy"] == {"step": [2], "entropy": [1.5]}, "absent is left out, not 0"
    assert got["charts"]["kl"] == {"step": [], "kl": []}
    assert set(got["charts"]) == {chart.id for chart in CHARTS}


def test_only_what_is_new(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(state="training")
    add_steps(maker.attempt(run), [{"reward": value / 10} for value in range(6)])
    client = client_for(bob)
    got = client.get(f"/p/ours/runs/{run.pk}/series.json", {"after": 4}).json()
    assert got["charts"]["reward"]["step"] == [5, 6]
    nothing = client.get(f"/p/ours/runs/{run.pk}/series.json", {"after": 6}).json()
    assert (nothing["last"], nothing["charts"]["reward"]["step"]) == (None, [])
    odd = client.get(f"/p/ours/runs/{run.pk}/series.json", {"after": "-1; drop"}).json()
    assert len(odd["charts"]["reward"]["step"]) == 6


def test_a_step_done_twice_is_drawn_as_it_stands(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(state="training")
    resumed_at_one(maker, run)
    got = client_for(bob).get(f"/p/ours/runs/{run.pk}/series.json").json()
    assert (got["charts"]["reward"]["step"], got["charts"]["reward"]["reward"]) == ([1, 2], [0.1, 0.9])
    assert got["seams"] == [{"step": 1, "attempt": 2, "why": "attempt 1 lost: not heard from"}]


def test_after_a_resume_everything_is_told_anew(client_for: ClientFor, bob: User, maker: Maker) -> None:
    """The page has drawn step 3 of an attempt that is gone, and the run is at step 2 again."""
    run = maker.run(state="training")
    first = maker.attempt(run)
    add_steps(first, [{"reward": 0.1}, {"reward": 0.2}, {"reward": 0.3}])
    client, address = client_for(bob), f"/p/ours/runs/{run.pk}/series.json"
    drawn = client.get(address).json()
    assert (drawn["last"], drawn["epoch"], drawn["after"], drawn["seams"]) == (3, "", 0, [])
    Attempt.objects.filter(pk=first.pk).update(state="lost")
    second = maker.attempt(run)
    gone_on(second, 1)
    add_steps(second, [{"reward": 0.9}], first=2)
    got = client.get(address, {"after": 3, "epoch": ""}).json()
    assert (got["epoch"], got["after"], got["last"]) == ("1:1", 0, 2)
    assert got["charts"]["reward"]["reward"] == [0.1, 0.9]
    more = client.get(address, {"after": 2, "epoch": "1:1"}).json()
    assert (more["after"], more["last"], [seam["step"] for seam in more["seams"]]) == (2, None, [1])


def test_a_seam_that_no_longer_stands_is_not_drawn(maker: Maker) -> None:
    """Attempt 2 went on from 4, attempt 3 from 2, attempt 4 from 2 as well, before attempt 3 made a step."""
    run = maker.run(state="training")
    for resumed, through in ((None, 2), (4, 2), (2, 2), (2, None)):
        attempt = maker.attempt(run, state="running" if through is None else "lost")
        Attempt.objects.filter(pk=attempt.pk).update(resumed_step=resumed, valid_through=through)
    assert [(seam.step, seam.attempt) for seam in seams(run)] == [(2, 4)]
    assert [(part.attempt.fence, part.first, part.last) for part in segments(run)] == [(1, 1, 2), (4, 3, None)]


def resumed_at_one(maker: Maker, run: Run) -> None:
    lost = maker.attempt(run, state="lost")
    add_steps(lost, [{"reward": 0.1}, {"reward": 0.2}])
    second = maker.attempt(run)
    gone_on(second, 1, reason="not heard from")
    add_steps(second, [{"reward": 0.9}], first=2)


def test_a_short_series_is_whole() -> None:
    assert thin([0.0] * MAX_POINTS, MAX_POINTS) == list(range(MAX_POINTS))


@pytest.mark.parametrize("count", [1001, 3000, 100_000])
def test_a_long_series_keeps_its_spikes_and_its_ends(count: int) -> None:
    values = [0.5] * count
    values[count // 3], values[count // 2] = 9.0, -9.0
    kept = thin(values, MAX_POINTS)
    assert len(kept) <= MAX_POINTS
    assert kept == sorted(set(kept))
    assert {0, count // 3, count // 2, count - 1} <= set(kept)


def test_each_chart_keeps_its_own_spikes() -> None:
    rows = [{"reward": 0.0, "entropy": 1.0} for _ in range(5000)]
    rows[1233]["reward"] = 5.0
    rows[4321]["entropy"] = 7.0
    drawn = series([Piece(step, step, point(metrics)) for step, metrics in enumerate(rows, start=1)])
    assert max(drawn["reward"]["reward"]) == 5.0
    assert max(drawn["entropy"]["entropy"]) == 7.0
    assert drawn["reward"]["step"][-1] == 5000
    assert len(json.dumps(drawn)) < 60_000


def test_every_chart_is_on_the_page_with_what_it_draws(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(state="training", algorithm={"kl": {"coef": 0.04}})
    charts = charts_of(RunConfig.from_dict(run.config))
    response = client_for(bob).get(f"/p/ours/runs/{run.pk}/")
    page = response.content.decode()
    assert re.findall(r'data-chart="(\w+)"', page) == [chart.id for chart in charts]
    for chart in CHARTS:
        assert len(chart.columns) == len(chart.names) == len(chart.colours)
    policy = response.headers["Content-Security-Policy"]
    assert "script-src 'self';" in policy + ";"
    assert "unsafe-eval" not in policy
    assert "style-src-attr 'unsafe-inline'" in policy
    assert "plotly.min.js" in page
    other = client_for(bob).get(f"/p/ours/runs/{run.pk}/groups/")
    assert "unsafe-inline" not in other.headers["Content-Security-Policy"], "only pages with charts"
    assert "plotly.min.js" not in other.content.decode()


ENGINE = ["phases", "speed", "memory", "utilisation"]
ALWAYS = ["reward", "signal", "entropy", "length", "zero_std", "mismatch", *ENGINE]


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        ({}, []),
        ({"kl": {"coef": 0.1}}, ["kl"]),
        ({"kl": {"coef": 0.1, "controller": "adaptive"}}, ["kl", "kl_coef"]),
        ({"inner_iterations": 2}, ["clip"]),
        ({"mini_batches": 2}, ["clip"]),
        ({"mini_batches": 2, "loss": "sapo"}, []),
        ({"loss": "dppo"}, ["clip"]),
        ({"dynamic_sampling": {"enabled": True}}, ["clip", "dynamic"]),
        ({"overlong": {"buffer_tokens": 16}}, ["overlong"]),
        ({"overlong": {"mask_truncated": True}}, ["masked"]),
        ({"correction": {"mode": "sequence_mask"}}, ["masked"]),
        ({"advantage": "gae", "scale": "batch_std"}, ["value_loss", "explained"]),
    ],
)
def test_a_run_draws_what_its_config_has_numbers_for(algorithm: dict[str, Any], more: list[str]) -> None:
    given = {"model": {"path": "m"}, "data": {"path": "d"}, "eval": {"holdout": 1}}
    reward = {"components": [{"name": "right", "kind": "numeric"}]}
    charts = charts_of(RunConfig.from_dict({**given, "reward": reward, "algorithm": algorithm}))
    assert {chart.id for chart in charts} == {*ALWAYS, *more}
    rest = [chart.span for chart in charts if chart.id not in ("reward", "signal")]
    filled = 0
    for span in rest:  # row by row, without a hole
        filled = (filled + span) % 60
    assert filled == 0
    assert sum(chart.span for chart in charts[:2]) == 60


@pytest.mark.parametrize(("stale", "drawn"), [("ratio", True), ("weight", False)])
def test_completions_of_an_earlier_policy_can_be_clipped_where_the_ratio_is_to_it(stale: str, drawn: bool) -> None:
    config = RunConfig.from_dict(
        {
            "model": {"path": "m"},
            "data": {"path": "d"},
            "eval": {"holdout": 1},
            "reward": {"components": [{"name": "right", "kind": "numeric"}]},
            "algorithm": {"correction": {"stale": stale}},
            "engine": {"one_step_off": True},
        }
    )
    assert ("clip" in {chart.id for chart in charts_of(config)}) is drawn


@pytest.mark.parametrize("beside", [False, True])
def test_the_help_of_the_phases_says_what_adds_up_to_the_step(beside: bool) -> None:
    """With one step off, sampling and scoring ran beside the step before: docs/metrics.md."""
    config = RunConfig.from_dict(
        {
            "model": {"path": "m"},
            "data": {"path": "d"},
            "eval": {"holdout": 1},
            "reward": {"components": [{"name": "right", "kind": "numeric"}]},
            "engine": {"one_step_off": beside},
        }
    )
    [said] = [chart.help for chart in charts_of(config) if chart.id == "phases"]
    assert said.startswith("The parts add up to the step.") is not beside
    assert ("sample and reward ran beside the step before" in said) is beside
    assert ("the next step's completions" in said) is beside
    assert "the run's other processes" in said


def test_what_the_machine_does_not_tell_is_not_drawn() -> None:
    config = RunConfig.from_dict(
        {
            "model": {"path": "m"},
            "data": {"path": "d"},
            "eval": {"holdout": 1},
            "reward": {"components": [{"name": "right", "kind": "numeric"}]},
        }
    )
    drawn = {chart.id for chart in charts_of(config, {"reward": 0.1, "memory/peak_bytes": 1e9})}
    assert drawn & set(ENGINE) == {"phases", "memory"}
    assert {chart.id for chart in charts_of(config)} >= set(ENGINE), "before the first step nobody knows"
    on_cpu = config.model_copy(update={"engine": config.engine.model_copy(update={"device": "cpu"})})
    assert "utilisation" not in {chart.id for chart in charts_of(on_cpu)}


def test_phases_of_a_step_rates_and_memory(client_for: ClientFor, bob: User, maker: Maker) -> None:
    """Of now and of a Cohort that said rollout; memory in its unit."""
    run = maker.run(state="training")
    told = {"memory/peak_bytes": 2.5e9, "tokens_per_second/sample": 800.0, "tokens_per_second/update": 1500.0}
    add_steps(maker.attempt(run), [{"reward": 0.1}, {"reward": 0.2, **told}])
    rows = list(StepMetric.objects.filter(run=run).order_by("step"))
    rows[0].seconds = {"rollout": 2.0, "reward": 0.5, "update": 1.0, "total": 4.0}
    rows[1].seconds = {"sample": 1.0, "reward": 0.25, "logprobs": 0.5, "update": 0.75, "other": 0.5, "total": 3.0}
    for row in rows:
        row.save(update_fields=["seconds"])
    got = client_for(bob).get(f"/p/ours/runs/{run.pk}/series.json").json()["charts"]
    assert got["phases"]["step"] == [1, 2]
    assert got["phases"]["seconds/sample"] == [2.0, 1.0]
    assert got["phases"]["seconds/logprobs"] == [None, 0.5]
    assert got["phases"]["seconds/other"] == [0.5, 0.5]
    assert got["phases"]["seconds/waiting"] == [None, None]
    assert got["memory"] == {"step": [2], "memory/peak_bytes": [2.5]}
    assert got["speed"]["tokens_per_second/update"] == [1500.0]
    assert got["utilisation"]["step"] == []


def test_the_kl_chart_says_to_which_policy() -> None:
    config = {
        "model": {"path": "m"}, "data": {"path": "d"}, "eval": {"holdout": 1},
        "reward": {"components": [{"name": "right", "kind": "numeric"}]},
        "algorithm": {"kl": {"coef": 0.1, "target": "old"}},
    }  # fmt: skip
    assert [chart.title for chart in charts_of(RunConfig.from_dict(config)) if chart.id == "kl"] == ["KL to old policy"]


@pytest.mark.parametrize(
    ("algorithm", "numbers", "said"),
    [
        ({}, {}, "n/a at μ 1"),
        ({"mini_batches": 2, "loss": "sapo"}, {}, "n/a, loss sapo"),
        ({"loss": "dppo"}, {}, "–"),
        ({"mini_batches": 2}, {}, "–"),
        ({"mini_batches": 2}, {"clip_ratio/low_mean": 0.01, "clip_ratio/high_mean": 0.02}, "3 %"),
        ({"mini_batches": 2}, {"clip_ratio/low_mean": 0.0, "clip_ratio/high_mean": 0.0}, "0 %"),
    ],
)
def test_clipped_tokens_are_not_0_where_nothing_could_be_clipped(
    client_for: ClientFor, bob: User, maker: Maker, algorithm: dict[str, Any], numbers: dict[str, float], said: str
) -> None:
    run = maker.run(state="training", algorithm=algorithm)
    add_steps(maker.attempt(run), [{"reward": 0.5, **numbers}])
    page = client_for(bob).get(f"/p/ours/runs/{run.pk}/").content.decode()
    found = re.search(r'<div class="label">Clipped tokens</div>\s*<div class="value">(.*?)</div>', page, re.DOTALL)
    assert found is not None
    assert re.sub(r"<[^>]+>|\s+", " ", found[1]).replace("\u00a0", " ").strip() == said


def test_without_a_reference_there_is_no_kl_to_draw(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(state="training")
    page = client_for(bob).get(f"/p/ours/runs/{run.pk}/").content.decode()
    assert 'data-chart="entropy"' in page
    assert 'data-chart="kl"' not in page
    assert "n/a, β 0" in page, "its tile says why"


def test_the_library_comes_from_its_package_and_nothing_else_of_it() -> None:
    found = finders.find("plotly/plotly.min.js")
    assert isinstance(found, str)
    assert found.endswith("plotly/package_data/plotly.min.js")
    assert finders.find("plotly/widgetbundle.js") is None
    listed = [path for finder in finders.get_finders() for path, _ in finder.list(None) if "plotly" in path]
    assert listed == ["plotly.min.js"]
