"""config.yaml and metrics.csv of a run."""

import csv
import io
from collections.abc import Callable

import pytest
from django.test import Client

from cohort.accounts.models import User
from cohort.runs.models import Attempt, Run
from grpo_core.config import RunConfig
from tests.web.run_rows import Maker, add_steps

ClientFor = Callable[[User], Client]


def test_the_config_is_the_run_s_own(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run("two digits", preset="dapo", seed=7)
    response = client_for(bob).get(f"/p/ours/runs/{run.pk}/config.yaml")
    assert response.headers["Content-Disposition"] == f'attachment; filename="two-digits-{run.pk}.config.yaml"'
    assert RunConfig.from_text(response.content.decode()).digest() == run.config_digest


def test_metrics_hold_every_step_and_metric(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(state="training")
    add_steps(maker.attempt(run), [{"reward": 0.25, "kl": 0.001}, {"reward": -0.5, "entropy": 1.5}])
    response = client_for(bob).get(f"/p/ours/runs/{run.pk}/metrics.csv")
    rows = list(csv.DictReader(io.StringIO(response.content.decode())))
    assert [row["step"] for row in rows] == ["1", "2"]
    assert [row["reward"] for row in rows] == ["0.25", "-0.5"], "a negative number stays a number"
    assert [row["kl"] for row in rows] == ["0.001", ""], "absent is empty, not 0"
    assert [row["entropy"] for row in rows] == ["", "1.5"]
    assert [row["seconds/total"] for row in rows] == ["1.5", "1.5"]


@pytest.mark.parametrize("name", ["=cmd()", "+1", "-1", "@x", "\tx", "\rx"])
def test_a_metric_named_like_a_formula_is_text(client_for: ClientFor, bob: User, maker: Maker, name: str) -> None:
    run = maker.run(state="training")
    add_steps(maker.attempt(run), [{name: 1.0}])
    table = client_for(bob).get(f"/p/ours/runs/{run.pk}/metrics.csv").content.decode()
    head = next(csv.reader(io.StringIO(table, newline="")))
    assert head[3] == f"'{name}"


def test_a_repeated_step_is_told_as_it_stands(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(state="training")
    lost = maker.attempt(run, state="lost")
    add_steps(lost, [{"reward": 0.1}, {"reward": 0.2}, {"reward": 0.3}])
    Attempt.objects.filter(pk=lost.pk).update(valid_through=1)
    add_steps(maker.attempt(run), [{"reward": 0.9}], first=2)

    def table(address: str) -> list[dict[str, str]]:
        text = client_for(bob).get(f"/p/ours/runs/{run.pk}/metrics.csv{address}").content.decode()
        return list(csv.DictReader(io.StringIO(text)))

    rows = table("")
    assert [(row["step"], row["attempt"], row["reward"]) for row in rows] == [("1", "1", "0.1"), ("2", "2", "0.9")]
    assert "superseded" not in rows[0]
    assert [(row["step"], row["attempt"], row["superseded"], row["reward"]) for row in table("?all=1")] == [
        ("1", "1", "", "0.1"),
        ("2", "1", "superseded", "0.2"),
        ("3", "1", "superseded", "0.3"),
        ("2", "2", "", "0.9"),
    ]


def test_a_name_cannot_write_headers(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run('a"; x=\u202e/../b')
    header = client_for(bob).get(f"/p/ours/runs/{run.pk}/config.yaml").headers["Content-Disposition"]
    assert header == f'attachment; filename="a-x-..-b-{run.pk}.config.yaml"'


@pytest.mark.parametrize("file", ["config.yaml", "metrics.csv"])
def test_who_and_how(client_for: ClientFor, bob: User, charlie: User, maker: Maker, file: str) -> None:
    run: Run = maker.run()
    assert client_for(bob).get(f"/p/ours/runs/{run.pk}/{file}").status_code == 200
    assert client_for(charlie).get(f"/p/ours/runs/{run.pk}/{file}").status_code == 404
    assert client_for(bob).post(f"/p/ours/runs/{run.pk}/{file}").status_code == 405
