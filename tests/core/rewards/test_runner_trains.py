"""Whole training runs of the real command whose reward is a person's verifier in the real sandbox."""

import json
import signal
import subprocess
import sys
from typing import Any

import psutil
import pytest

from grpo_core.cli import main
from grpo_core.errors import SandboxError
from grpo_core.rewards import Runner, session
from grpo_core.rewards.session import shared_sandbox
from tests.core.rewards.scoring import PROGRAMS
from tests.core.runs import PLAIN, Setting, make_home, merged, result, rows
from tests.processes import below, clean_environment, lives, wait_for

# The kind numeric with the settings of PLAIN's component `near`, as a person would write it.
NEAR = PROGRAMS["near"]
LOOPS = NEAR.replace("    near =", '    while sample.completion.startswith("9"):\n        pass\n    near =')


def with_near(component, **more):
    """PLAIN with another component in the place of `near`."""
    first = PLAIN["reward"]["components"][0]  # type: ignore[index]
    return merged(PLAIN, {"reward": {"components": [first, {"name": "near", "weight": 0.5, **component}], **more}})


def python(source, **limits):
    more = {"limits": {"workers": 2, **limits}}
    return with_near({"kind": "python", "params": {"source": source}}, **more)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return make_home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def near(home, tmp_path_factory):
    """A run that the verifier NEAR scored."""
    out = tmp_path_factory.mktemp("near") / "run"
    assert Setting(home, "near", python(NEAR)).train(out) == 0
    return out


def components(out, name="near"):
    """Of all samples that the run kept."""
    files = sorted((out / "samples").glob("*.jsonl"))
    groups: list[Any] = [row for file in files for row in rows(file)]
    return [sample["components"][name] for group in groups for sample in group["samples"]]


def metrics_of(out):
    lines: list[Any] = rows(out / "metrics.jsonl")
    return [row["metrics"] for row in lines if row["kind"] == "step"]


def events(out, kind):
    lines: list[Any] = rows(out / "events.jsonl")
    return [row for row in lines if row["kind"] == "event" and row["type"] == kind]


def test_a_verifier_trains_to_the_bit_like_the_rule_that_says_the_same(home, near, tmp_path):
    rule = Setting(home, "rule", PLAIN)
    assert rule.train(tmp_path / "run") == 0
    ours, theirs = result(near), result(tmp_path / "run")
    assert ours.weights == theirs.weights
    assert [row["metrics"] for row in ours.metrics] == [row["metrics"] for row in theirs.metrics]
    assert ours.totals == theirs.totals
    assert 0 < sum(row["metrics"]["rewards/near/mean"] for row in ours.metrics) < 4  # type: ignore[index]


def test_what_a_verifier_says_stays_with_its_sample(near):
    told = components(near)
    assert len(told) > 20
    assert all(one["printed"].startswith("looked at ") and one["seconds"] > 0 for one in told)
    assert {one["passed"] for one in told} == {True, False}


def test_the_manifest_names_source_and_sandbox(near):
    manifest = json.loads((near / "manifest.json").read_text())
    assert len(manifest["reward"]["near"]["source_sha256"]) == 64
    assert manifest["sandbox"] == shared_sandbox().report.to_json() | {"tested_at": manifest["sandbox"]["tested_at"]}
    assert [row["data"]["near"]["workers"] for row in events(near, "reward_facts")] == [2]


@pytest.mark.parametrize(
    "points", [["updated:3"], pytest.param(["sampled:2", "updated:3", "step:4"], marks=pytest.mark.slow)]
)
def test_killed_and_resumed_it_is_to_the_bit_the_run_that_nobody_killed(home, near, tmp_path, points):
    assert Setting(home, "killed", python(NEAR)).through(tmp_path / "run", points) == points

    def without_name(found):
        return [found.weights, found.metrics, found.samples, found.evaluations, found.totals]

    assert without_name(result(tmp_path / "run")) == without_name(result(near))


@pytest.mark.parametrize("on_error", ["mask", pytest.param("zero", marks=pytest.mark.slow)])
def test_a_verifier_that_loops_for_ever_on_some_samples(home, tmp_path, on_error):
    out = tmp_path / "run"
    parts = python(LOOPS, workers=4, deadline_seconds=0.5)
    parts = merged(parts, {"reward": {"on_error": on_error}, "optim": {"steps": 2}, "traces": {"groups_per_step": 3}})
    assert Setting(home, f"loops-{on_error}", parts).train(out) == 0
    late = [one for one in components(out) if one["error"] is not None]
    assert late
    for one in late:
        assert (one["error_class"], one["value"]) == ("timeout", None)
        assert one["seconds"] >= 0.5
    metrics = metrics_of(out)
    assert sum(one["reward_errors/timeout"] for one in metrics) == len(late)
    masked = len(late) if on_error == "mask" else 0
    assert sum(one["masked/reward_error"] for one in metrics) == masked
    totals = json.loads((out / "outcome.json").read_text())["totals"]
    assert (totals["reward_errors_timeout"], totals["masked_reward_error"]) == (len(late), masked)
    assert all(one["reward"] > 0 for one in metrics)


def test_trouble_of_the_sandbox_is_told_once_it_is_more_than_a_chance(home, tmp_path, monkeypatch):
    """Verifiers that end their boxes need new ones, and those cannot be had for a while."""
    real = shared_sandbox()
    opened: list[None] = []

    class Failing:
        report = real.report

        def open(self, *words, **more):
            opened.append(None)
            if 4 < len(opened) < 12:
                raise SandboxError("a box could not be started: Resource temporarily unavailable")
            return real.open(*words, **more)

    monkeypatch.setattr(session, "shared_sandbox", Failing)
    monkeypatch.setattr("grpo_core.rewards.retries.FIRST_PAUSE", 0.01)
    ends = NEAR.replace(
        "    near =", '    if sample.completion.startswith("9"):\n        __import__("os")._exit(0)\n    near ='
    )
    parts = merged(python(ends, workers=1, retries=0), {"reward": {"on_error": "zero"}, "optim": {"steps": 3}})
    out = tmp_path / "run"
    assert Setting(home, "trouble", parts).train(out) == 0
    metrics = metrics_of(out)
    count = sum(one.get("reward_errors/infra", 0) for one in metrics)
    assert count > 0
    assert sum(one["masked/reward_error"] for one in metrics) == count  # never paid 0, whatever on_error says
    warned = [row["message"] for row in events(out, "warning")]
    assert any("trouble of the machine" in message for message in warned), warned


# ---------------------------------------------------------------------- runs that must not begin, and how they end


def test_without_a_sandbox_the_run_is_refused_before_a_model_is_loaded(home, tmp_path, monkeypatch):
    def none():
        raise SandboxError("Fix: apt-get install bubblewrap")

    def load(*_, **__):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(session, "shared_sandbox", none)
    monkeypatch.setattr("grpo_core.inputs.load_policy", load)
    assert Setting(home, "refused", python(NEAR)).train(tmp_path / "run") == 6
    outcome = json.loads((tmp_path / "run" / "outcome.json").read_text())
    assert (outcome["status"], outcome["code"]) == ("failed", "sandbox_error")
    assert "apt-get install bubblewrap" in outcome["message"]


@pytest.mark.parametrize(
    ("params", "status", "fault"),
    [
        ({"source": "def verify(sample):\n    return (1\n"}, 2, "line 2"),
        ({"source": "import socket\ndef verify(sample):\n    return 1\n"}, 2, "'socket'"),
        ({"source": "1 / 0\ndef verify(sample):\n    return 1\n"}, 5, "ZeroDivisionError"),
        ({"source": NEAR, "columns": ["unit"]}, 3, "line-1 has no 'unit'"),
    ],
)
def test_a_verifier_that_is_wrong_ends_the_run_before_it_begins(home, tmp_path, params, status, fault):
    ended, printed = Setting(home, "wrong", with_near({"kind": "python", "params": params})).told(tmp_path / "run")
    assert (ended, fault in printed) == (status, True), printed


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["training", "evaluating_before"])
def test_asked_to_stop_while_a_verifier_loops_a_run_ends_with_all_its_boxes(home, tmp_path, phase):
    parts = merged(
        python("def verify(sample):\n    while True:\n        pass\n    return 1", deadline_seconds=3600),
        {"eval": {"before": phase == "evaluating_before"}},
    )
    config, out = Setting(home, f"stopped-{phase}", parts).write(), tmp_path / "run"
    words = [sys.executable, "-P", "-m", "grpo_core.cli", "train", str(config), "--out", str(out)]
    run = subprocess.Popen(words, env=clean_environment("GRPO_"), stdout=subprocess.DEVNULL)

    def loops():
        try:
            found = [one for one in below(run.pid) if one.cpu_times().user > 0.5]
        except psutil.Error:
            return False
        return len([one for one in found if "python" in one.name()]) >= 2

    wait_for(loops, "boxes that loop", run)
    started = below(run.pid)
    run.send_signal(signal.SIGTERM)
    assert run.wait() == 75
    outcome = json.loads((out / "outcome.json").read_text())
    assert (outcome["status"], outcome["code"]) == ("stopped", "interrupted")
    wait_for(lambda: not any(map(lives, started)), f"{started} to end")


def test_evaluating_closes_what_it_opened(home, capsys):
    config = Setting(home, "evaluated", python(LOOPS, deadline_seconds=1)).write()
    shared_sandbox().run("")  # its keeper lives on
    before = len(below())
    assert main(["eval", str(config), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["results"]
    assert (found["problems"], len(below())) == (3, before)


@pytest.mark.slow
def test_each_rank_scores_its_share_in_boxes_of_its_own(home, near, tmp_path):
    parts, out = merged(python(NEAR), {"engine": {"threads": 1, "devices": 2}}), tmp_path / "run"
    words = ["train", str(Setting(home, "ranks", parts).write()), "--out", str(out)]
    environment = {**clean_environment("GRPO_"), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-P", "-m", "grpo_core.cli", *words], env=environment, check=True)

    def verdicts(run):
        return [[one["value"], one["detail"], one["passed"]] for one in components(run)][:20]

    assert verdicts(out) == verdicts(near)
    assert len(events(out, "reward_facts")) == 2


@pytest.mark.parametrize("ends", ["well", "with an error"])
def test_a_trainer_closes_its_runner_however_it_ends(home, tmp_path, monkeypatch, ends):
    shared_sandbox()
    closed: list[int] = []
    close = Runner.close

    def told(self):
        before = len(below())
        close(self)
        closed.append(before - len(below()))

    monkeypatch.setattr(Runner, "close", told)
    source = NEAR if ends == "well" else NEAR.replace("near =", "near = 1 / 0 if sample.completion else")
    parts = merged(python(source), {"reward": {"on_error": "fail"}, "eval": {"before": False}, "optim": {"steps": 2}})
    config = Setting(home, "closed", parts).write()
    assert main(["train", str(config), "--out", str(tmp_path / "run")]) == (0 if ends == "well" else 5)
    assert len(closed) == 1
    assert closed[0] > 0
