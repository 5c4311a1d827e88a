"""Whole tiny runs through the real command whose reward is a reward model, a process reward model, or a judge."""

import hashlib
import json

import pytest
from transformers import LlamaForSequenceClassification, LlamaForTokenClassification

from grpo_core.rewards.base import Context
from grpo_core.rewards.process import Process, ProcessParams
from grpo_core.rewards.reward_model import RewardModel, RewardModelParams
from tests.core.runs import KILLED, STEPS, forked, merged, rows, setting

from .classifiers import sample, save
from .judge_server import apart, http, says

KEY = "sk-test-0123456789abcdef"
SAMPLING = {"group_size": 6, "prompts_per_step": 2, "max_completion_tokens": 6}


@pytest.fixture(scope="module")
def home(runs_home):
    save(runs_home / "reward", LlamaForSequenceClassification, seed=1)
    save(runs_home / "steps", LlamaForTokenClassification, seed=1)
    return runs_home


def train(home, out, *arguments, fault="", **parts):
    """Status of `grpo train`, and what it printed."""
    plain = setting(home, "plain")
    traces = {"traces": {"groups_per_step": 9}}
    made = merged(merged(plain.parts, {"sampling": SAMPLING, **traces}), parts)
    made["reward"] = parts["reward"]
    path, log = type(plain)(home, out.name, made).write(), out.with_name(f"{out.name}.said")
    status = forked(["train", str(path), "--out", str(out), *arguments], fault=fault, log=log)
    return status, log.read_text(encoding="utf-8")


def used(out):
    """What the reward used, as told at the end of the run."""
    (event,) = [row for row in rows(out / "events.jsonl") if row.get("type") == "reward_facts"]
    return event["data"]


def samples(out):
    groups = [row for path in sorted((out / "samples").glob("*.jsonl")) for row in rows(path)]
    return [one for group in groups for one in group["samples"]]


def test_a_reward_model_pays_a_run(home, tmp_path):
    params = {"path": "reward", "template": "{completion}", "pass_at": 0}
    component = {"name": "liked", "kind": "reward_model", "weight": 0.5, "params": params}
    status, printed = train(home, tmp_path / "run", reward={"components": [component]})
    assert status == 0, printed
    paid = samples(tmp_path / "run")
    assert len(paid) >= 6 * STEPS
    alone = RewardModel(RewardModelParams(**params), Context(base=home))
    for one in paid:
        (score,) = alone.score([sample(one["completion"])], lambda: None)
        assert one["components"]["liked"]["value"] == pytest.approx(score.value, abs=1e-5)
        assert one["reward"] == pytest.approx(0.5 * score.value, abs=1e-5)
    assert len({round(one["reward"], 3) for one in paid}) > 3
    assert any(one["advantage"] > 0.1 for one in paid)
    sha256 = hashlib.sha256((home / "reward" / "model.safetensors").read_bytes()).hexdigest()
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["reward"]["liked"]["weights"] == {"model.safetensors": sha256}
    assert used(tmp_path / "run")["liked"]["texts"] >= len(paid)


def test_a_process_reward_model_pays_the_steps_of_a_run(home, tmp_path):
    # The tiny policy says digits: a 9 separates its steps.
    params = {"path": "steps", "label": "good", "separator": "9", "aggregate": "mean"}
    component = {"name": "steps", "kind": "process", "params": params}
    algorithm = {"supervision": "process", "advantage": "group", "scale": "group_std"}
    status, printed = train(home, tmp_path / "run", reward={"components": [component]}, algorithm=algorithm)
    assert status == 0, printed
    paid = samples(tmp_path / "run")
    alone = Process(ProcessParams(**params), Context(base=home))
    several = 0
    for one in paid:
        told = one["components"]["steps"]
        (score,) = alone.score([sample(one["completion"], prompt="")], lambda: None)
        assert [step["end"] for step in told["steps"]] == [step.end for step in score.steps]
        several += len(told["steps"]) > 1
        if told["steps"]:
            values = [step["value"] for step in told["steps"]]
            assert told["value"] == pytest.approx(sum(values) / len(values))
            assert all(0 < value < 1 for value in values)
    assert several > 2
    assert any(one["advantage"] > 0.1 for one in paid)
    assert used(tmp_path / "run")["steps"]["steps"] > len(paid)


def by_last_digit(seen):
    """9 for a completion that ends in 9, and so on; tells the key that it was sent, and answers nothing twice."""
    digits = [letter for letter in seen.completion if letter in "0123456789"]
    if seen.raw in SEEN:
        return http("400 Bad Request", b'{"error": "asked twice"}')
    SEEN.add(seen.raw)
    key = seen.headers.get("authorization", "")
    return says(f"You sent {key}.\nScore: {digits[-1] if digits else 0}", usage=(20, 4))


SEEN: set[bytes] = set()


def test_a_judge_pays_a_run_that_dies_and_goes_on(home, tmp_path, monkeypatch):
    with apart(by_last_digit) as place:
        monkeypatch.setenv("GRPO_JUDGE_ALLOW", place)
        monkeypatch.setenv("GRPO_JUDGE_KEY", KEY)
        monkeypatch.setenv("GRPO_JUDGE_KEY_HOSTS", place)
        params = {"base_url": f"http://{place}/v1", "model": "grader"}
        reward = {"components": [{"name": "judge", "kind": "judge", "params": params}], "limits": {"retries": 0}}
        out = tmp_path / "run"
        status, printed = train(home, out, reward=reward, fault=f"updated:{STEPS}")
        assert status == KILLED, printed
        status, printed = train(home, out, "--resume", reward=reward)
        assert status == 0, printed
    paid = samples(out)
    assert {one["components"]["judge"]["error"] for one in paid} == {None}  # nothing was asked twice
    for one in paid:
        digits = [letter for letter in one["completion"] if letter in "0123456789"]
        assert one["reward"] == (int(digits[-1]) / 10 if digits else 0)
    assert len(rows(out / "metrics.jsonl")) == STEPS
    facts = used(out)["judge"]
    assert facts["models"] == ["judge-2026-01"]
    assert facts["cache_hits"] > 0
    assert facts["prompt_tokens"] == 20 * facts["answers"]
    assert facts["calls"] == facts["answers"] > 0
    files = [path for path in [*out.rglob("*"), *tmp_path.glob("*.said")] if path.is_file()]
    assert len(files) > 8
    assert [str(path) for path in files if KEY.encode() in path.read_bytes()] == []
    assert any(b"You sent Bearer [key]" in path.read_bytes() for path in files)


def test_a_judge_that_is_gone_ends_the_run_with_its_cause(home, tmp_path, monkeypatch):
    with apart(by_last_digit) as place:
        pass
    monkeypatch.setenv("GRPO_JUDGE_ALLOW", place)
    params = {"base_url": f"http://{place}/v1", "model": "grader", "key_env": None}
    component = {"name": "judge", "kind": "judge", "params": params}
    reward = {"components": [component], "limits": {"retries": 0}, "on_error": "zero"}
    status, printed = train(home, tmp_path / "run", reward=reward, eval={"before": False, "after": False})
    assert status == 5
    assert f"{place} cannot be reached" in printed


def test_a_private_judge_ends_the_run_before_a_model_is_loaded(home, tmp_path):
    params = {"base_url": "https://localhost/v1", "model": "grader", "key_env": None}
    reward = {"components": [{"name": "judge", "kind": "judge", "params": params}]}
    status, printed = train(home, tmp_path / "run", reward=reward)
    assert status == 2
    assert "GRPO_JUDGE_ALLOW=localhost:443" in printed
