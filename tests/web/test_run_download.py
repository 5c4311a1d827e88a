"""config.yaml and metrics.csv of a run."""

import csv
import io
from collections.abc import Callable

import pytest
from django.http import HttpResponse
from django.test import Client

from cohort.runs.models import Attempt, Run
from grpo_core.config import RunConfig
from tests.factories.runs import Maker, add_steps

Download = Callable[[Run, str], HttpResponse]


@pytest.fixture
def download(viewer: Client) -> Download:
    return lambda run, file: viewer.get(f"/p/ours/runs/{run.pk}/{file}")


def table(response: HttpResponse) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(response.content.decode(), newline="")))


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
