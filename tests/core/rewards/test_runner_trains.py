"""Whole tiny runs through the real command whose reward is a person's verifier in the real sandbox, a reward model, a
process reward model, or a judge."""

import hashlib
import json
import signal
import subprocess
import sys

import psutil
import pytest
from transformers import LlamaForSequenceClassification, LlamaForTokenClassification

from grpo_core.cli.main import main
from grpo_core.errors import SandboxError
from grpo_core.files.token_file import TokenFile
from grpo_core.rewards import Runner
from grpo_core.rewards.base import Context
from grpo_core.rewards.models.process import Process, ProcessParams
from grpo_core.rewards.models.reward_model import RewardModel, RewardModelParams
from grpo_core.rewards.python import session
from grpo_core.rewards.python.session import shared_sandbox
from tests.core import runs
from tests.core.runs import KILLED, PLAIN, STEPS, Setting, merged
from tests.processes import below, clean_environment, lives, wait_for

from .classifiers import save, scored
from .judge_server import KEY, apart, http, says
from .scoring import PROGRAMS, FailingSandbox

# The kind numeric with the settings of PLAIN's component `near`, as a person would write it; and on some samples worse.
NEAR = PROGRAMS["near"]
LOOPS = NEAR.replace("    near =", '    while sample.completion.startswith("9"):\n        pass\n    near =')
ENDS = NEAR.replace("    near =", '    if sample.completion[0] == "9":\n        __import__("os")._exit(0)\n    near =')


def with_near(component, **more):
    """PLAIN with another component in the place of `near`."""
    near = {"name": "near", "weight": 0.5, **component}
    return merged(PLAIN, {"reward": {"components": [PLAIN["reward"]["components"][0], near], **more}})


def python(source, **limits):
    return with_near({"kind": "python", "params": {"source": source}}, limits={"workers": 2, **limits})


@pytest.fixture(scope="module")
def near(runs_home, tmp_path_factory):
    """A run that the verifier NEAR scored."""
    out = tmp_path_factory.mktemp("near") / "run"
    assert Setting(runs_home, "near", python(NEAR)).train(out) == 0
    return out


def components(out, name="near"):
    """Of all samples that the run kept."""
    return [sample["components"][name] for sample in runs.samples_of(out)]


def facts_of(out):
    """What the reward used, as recorded at the end of the run by each rank."""
    return [row["data"] for row in runs.rows(out / "events.jsonl") if row.get("type") == "reward_facts"]


def test_a_verifier_trains_to_the_bit_like_the_rule_that_says_the_same(whole, near):
    ours, theirs = runs.result(near), whole("plain")
    assert ours.weights == theirs.weights
    assert [row["metrics"] for row in ours.metrics] == [row["metrics"] for row in theirs.metrics]
    assert ours.totals == theirs.totals
    assert 0 < sum(row["metrics"]["rewards/near/mean"] for row in ours.metrics) < 4


def test_what_a_verifier_says_stays_with_its_sample_and_the_manifest_names_source_and_sandbox(near):
    scores = components(near)
    assert len(scores) > 20
    assert all(score["printed"].startswith("looked at ") and score["seconds"] > 0 for score in scores)
    assert {score["passed"] for score in scores} == {True, False}
    manifest = json.loads((near / "manifest.json").read_text())
    assert len(manifest["reward"]["near"]["source_sha256"]) == 64
    assert manifest["sandbox"] == shared_sandbox().report.to_json() | {"tested_at": manifest["sandbox"]["tested_at"]}
    assert [facts["near"]["workers"] for facts in facts_of(near)] == [2]


@pytest.mark.parametrize(
    "points", [["updated:3"], pytest.param(["sampled:2", "updated:3", "step:4"], marks=pytest.mark.slow)]
)
def test_killed_and_resumed_it_is_to_the_bit_the_run_that_nobody_killed(runs_home, near, tmp_path, points):
    assert Setting(runs_home, "killed", python(NEAR)).through(tmp_path / "run", points) == points
    assert runs.result(tmp_path / "run") == runs.result(near)


def test_a_verifier_that_loops_for_ever_on_some_samples(runs_home, tmp_path):
    """That is what those completions did to it: they are paid 0, and counted."""
    out = tmp_path / "run"
    parts = python(LOOPS, workers=4, deadline_seconds=0.5)
    parts = merged(parts, {"optim": {"steps": 2}, "traces": {"groups_per_step": 3}})
    assert Setting(runs_home, "loops", parts).train(out) == 0
    late = [sample for sample in components(out) if sample["error_class"] == "timeout"]
    assert late
    for sample in late:
        assert (sample["value"], sample["passed"], sample["error"]) == (0.0, False, None)
        assert sample["seconds"] >= 0.5
    metrics = runs.metrics_of(out)
    assert sum(step["reward_errors/timeout"] for step in metrics) == len(late)
    assert sum(step["masked/reward_error"] for step in metrics) == 0
    totals = runs.outcome_of(out)["totals"]
    assert (totals["reward_errors_timeout"], totals["masked_reward_error"]) == (len(late), 0)
    assert all(step["reward"] > 0 for step in metrics)


def test_trouble_of_the_sandbox_is_reported_once_it_is_more_than_a_chance(runs_home, tmp_path, monkeypatch):
    """Verifiers that end their boxes need new ones, and those cannot be had for a while."""
    sandbox = FailingSandbox(7, after=4)
    monkeypatch.setattr(session, "shared_sandbox", lambda: sandbox)
    monkeypatch.setattr("grpo_core.rewards.runner.FIRST_PAUSE", 0.01)
    parts = merged(python(ENDS, workers=1, retries=0), {"reward": {"on_error": "zero"}, "optim": {"steps": 3}})
    out = tmp_path / "run"
    assert Setting(runs_home, "trouble", parts).train(out) == 0
    metrics = runs.metrics_of(out)
    count = sum(step.get("reward_errors/infra", 0) for step in metrics)
    assert count > 0
    assert sum(step["masked/reward_error"] for step in metrics) == count  # never paid 0, whatever on_error says
    diagnoses = [row["message"] for row in runs.rows(out / "events.jsonl") if row.get("type") == "diagnosis"]
    assert any("A sandbox or a server failed for" in message for message in diagnoses), diagnoses


# ---------------------------------------------------------------------- runs that must not begin, and how they end


def test_without_a_sandbox_the_run_is_refused_before_a_model_is_loaded(runs_home, tmp_path, monkeypatch):
    def none():
        raise SandboxError("Fix: apt-get install bubblewrap")

    def load(*_, **__):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(session, "shared_sandbox", none)
    monkeypatch.setattr("grpo_core.trainer.inputs.load_policy", load)
    assert Setting(runs_home, "refused", python(NEAR)).train(tmp_path / "run") == 6
    outcome = runs.outcome_of(tmp_path / "run")
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
def test_a_verifier_that_is_wrong_ends_the_run_before_it_begins(runs_home, tmp_path, params, status, fault):
    ended, printed = Setting(runs_home, "wrong", with_near({"kind": "python", "params": params})).train_captured(
        tmp_path / "run"
    )
    assert (ended, fault in printed) == (status, True), printed


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["training", "evaluating_before"])
def test_asked_to_stop_while_a_verifier_loops_a_run_ends_with_all_its_boxes(runs_home, tmp_path, phase):
    parts = merged(
        python("def verify(sample):\n    while True:\n        pass\n    return 1", deadline_seconds=3600),
        {"eval": {"before": phase == "evaluating_before"}},
    )
    config, out = Setting(runs_home, f"stopped-{phase}", parts).write(), tmp_path / "run"
    words = [sys.executable, "-P", "-m", "grpo_core.cli.main", "train", str(config), "--out", str(out)]
    run = subprocess.Popen(words, env=clean_environment("GRPO_"), stdout=subprocess.DEVNULL)

    def loops():
        try:
            looping = [process for process in below(run.pid) if process.cpu_times().user > 0.5]
        except psutil.Error:
            return False
        return len([process for process in looping if "python" in process.name()]) >= 2

    wait_for(loops, "boxes that loop", run)
    started = below(run.pid)
    run.send_signal(signal.SIGTERM)
    assert run.wait() == 75
    outcome = runs.outcome_of(out)
    assert (outcome["status"], outcome["code"]) == ("stopped", "interrupted")
    wait_for(lambda: not any(map(lives, started)), f"{started} to end")


def test_evaluating_closes_what_it_opened(runs_home, capsys):
    config = Setting(runs_home, "evaluated", python(LOOPS, deadline_seconds=1)).write()
    shared_sandbox().run("")  # its keeper lives on
    before = len(below())
    assert main(["eval", str(config), "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert (result["problems"], len(below())) == (3, before)


@pytest.mark.slow
def test_each_rank_scores_its_share_in_boxes_of_its_own(runs_home, near, tmp_path):
    parts, out = merged(python(NEAR), {"engine": {"threads": 1, "devices": 2}}), tmp_path / "run"
    words = ["train", str(Setting(runs_home, "ranks", parts).write()), "--out", str(out)]
    environment = {**clean_environment("GRPO_"), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-P", "-m", "grpo_core.cli.main", *words], env=environment, check=True)

    def verdicts(run):
        return [[sample["value"], sample["detail"], sample["passed"]] for sample in components(run)][:20]

    assert verdicts(out) == verdicts(near)
    assert len(facts_of(out)) == 2


@pytest.mark.parametrize("ends", ["well", "with an error"])
def test_a_trainer_closes_its_runner_however_it_ends(runs_home, tmp_path, monkeypatch, ends):
    shared_sandbox()
    closed: list[int] = []
    close = Runner.close

    def counting(self):
        before = len(below())
        close(self)
        closed.append(before - len(below()))

    monkeypatch.setattr(Runner, "close", counting)
    source = NEAR if ends == "well" else NEAR.replace("near =", "near = 1 / 0 if sample.completion else")
    parts = merged(python(source), {"reward": {"on_error": "fail"}, "eval": {"before": False}, "optim": {"steps": 2}})
    config = Setting(runs_home, "closed", parts).write()
    assert main(["train", str(config), "--out", str(tmp_path / "run")]) == (0 if ends == "well" else 5)
    assert len(closed) == 1
    assert closed[0] > 0


# ---------------------------------------------------------------------- models and judges

SAMPLING = {"group_size": 6, "prompts_per_step": 2, "max_completion_tokens": 6}


def with_model(home, name, component, **parts):
    """PLAIN with one component, and more samples."""
    reward = {"components": [component], **parts.pop("reward", {})}
    made = merged(merged(PLAIN, {"sampling": SAMPLING, "traces": {"groups_per_step": 9}}), parts)
    return Setting(home, name, {**made, "reward": reward})


def test_a_reward_model_pays_a_run(runs_home, tmp_path):
    folder, out = save(runs_home / "reward", LlamaForSequenceClassification, seed=1), tmp_path / "run"
    params = {"path": "reward", "template": "{completion}", "pass_at": 0}
    component = {"name": "liked", "kind": "reward_model", "weight": 0.5, "params": params}
    status, printed = with_model(runs_home, "liked", component).train_captured(out)
    assert status == 0, printed
    paid = runs.samples_of(out)
    assert len(paid) >= 6 * STEPS
    alone = RewardModel(RewardModelParams(**params), Context(base=runs_home))
    for sample in paid:
        (score,) = scored(alone, sample["completion"])
        assert sample["components"]["liked"]["value"] == pytest.approx(score.value, abs=1e-5)
        assert sample["reward"] == pytest.approx(0.5 * score.value, abs=1e-5)
    assert len({round(sample["reward"], 3) for sample in paid}) > 3
    assert any(sample["advantage"] > 0.1 for sample in paid)
    sha256 = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["reward"]["liked"]["weights"] == {"model.safetensors": sha256}
    assert facts_of(out)[0]["liked"]["texts"] >= len(paid)


def test_a_process_reward_model_pays_the_steps_of_a_run(runs_home, tmp_path):
    save(runs_home / "steps", LlamaForTokenClassification, seed=1)
    # The tiny policy says digits: a 9 separates its steps.
    params = {"path": "steps", "label": "good", "separator": "9", "aggregate": "mean"}
    component, out = {"name": "steps", "kind": "process", "params": params}, tmp_path / "run"
    algorithm = {"supervision": "process", "advantage": "group", "scale": "group_std"}
    kept = {"algorithm": algorithm, "traces": {"tokens": ["all"]}}
    status, printed = with_model(runs_home, "steps", component, **kept).train_captured(out)
    assert status == 0, printed
    paid = runs.samples_of(out)
    alone = Process(ProcessParams(**params), Context(base=runs_home))
    for sample in paid:
        steps = sample["components"]["steps"]["steps"]
        (score,) = scored(alone, sample["completion"], prompt="")
        assert [step["end"] for step in steps] == [step.end for step in score.steps]
        if steps:
            values = [step["value"] for step in steps]
            assert sample["components"]["steps"]["value"] == pytest.approx(sum(values) / len(values))
            assert all(0 < value < 1 for value in values)
    assert sum(len(sample["components"]["steps"]["steps"]) > 1 for sample in paid) > 2
    assert any(sample["advantage"] > 0.1 for sample in paid)
    assert facts_of(out)[0]["steps"]["steps"] > len(paid)
    groups = {group["index"]: group for group in runs.rows(out / "samples" / "step-000001.jsonl")}
    with (out / "tokens" / "step-000001.parquet").open("rb") as handle:
        file = TokenFile(handle)
        rows = [file.row(number, most_tokens=6) for number in range(file.rows)]
    checked = 0
    for row in rows:
        sample, columns = groups[row.group]["samples"][row.sample], row.columns
        steps = sample["components"]["steps"]["steps"]
        if steps and sample["completion"].isascii():  # a token of the tiny policy is a byte
            checked += 1
            ends = {step["end"] - 1: pytest.approx(step["value"], abs=1e-5) for step in steps}
            assert columns["step_reward"] == [ends.get(index) for index in range(len(columns["token_id"]))]
            mean = sum(columns["advantage"]) / len(columns["advantage"])
            assert sample["advantage"] == pytest.approx(mean, abs=1e-5)
    assert checked > 2


SEEN: set[bytes] = set()


def last_digit(text):
    return next((letter for letter in reversed(text) if letter in "0123456789"), "0")


def by_last_digit(seen):
    """9 for a completion that ends in 9, and so on; tells the key that it was sent, and answers nothing twice."""
    if seen.raw in SEEN:
        return http("400 Bad Request", b'{"error": "asked twice"}')
    SEEN.add(seen.raw)
    key = seen.headers.get("authorization", "")
    return says(f"You sent {key}.\nScore: {last_digit(seen.completion)}", usage=(20, 4))


def test_a_judge_pays_a_run_that_dies_and_goes_on(runs_home, tmp_path, monkeypatch):
    out, logs = tmp_path / "run", [tmp_path / "first", tmp_path / "second"]
    with apart(by_last_digit) as address:
        for name, value in (("ALLOW", address), ("KEY", KEY), ("KEY_HOSTS", address)):
            monkeypatch.setenv(f"GRPO_JUDGE_{name}", value)
        params = {"base_url": f"http://{address}/v1", "model": "grader"}
        component = {"name": "judge", "kind": "judge", "params": params}
        path = with_model(runs_home, "judged", component, reward={"limits": {"retries": 0}}).write()
        words = ["train", str(path), "--out", str(out)]
        assert runs.forked(words, fault=f"updated:{STEPS}", log=logs[0]) == KILLED, logs[0].read_text()
        assert runs.forked([*words, "--resume"], log=logs[1]) == 0, logs[1].read_text()
    paid = runs.samples_of(out)
    assert {sample["components"]["judge"]["error"] for sample in paid} == {None}  # nothing was asked twice
    for sample in paid:
        assert sample["reward"] == int(last_digit(sample["completion"])) / 10
    assert len(runs.rows(out / "metrics.jsonl")) == STEPS
    facts = facts_of(out)[-1]["judge"]
    assert facts["models"] == ["judge-2026-01"]
    assert facts["cache_hits"] > 0
    assert facts["prompt_tokens"] == 20 * facts["answers"]
    assert facts["calls"] == facts["answers"] > 0
    files = [path for path in [*out.rglob("*"), *logs] if path.is_file()]
    assert len(files) > 8
    assert [str(path) for path in files if KEY.encode() in path.read_bytes()] == []
    assert any(b"You sent Bearer [key]" in path.read_bytes() for path in files)
    # The judge is gone: a run that begins now ends with that as its cause.
    params = {**component, "params": {**params, "key_env": None}}
    reward = {"limits": {"retries": 0}, "on_error": "zero"}
    last = with_model(runs_home, "gone", params, reward=reward, eval={"before": False, "after": False})
    status, printed = last.train_captured(tmp_path / "gone")
    assert (status, f"{address} cannot be reached" in printed) == (5, True)
