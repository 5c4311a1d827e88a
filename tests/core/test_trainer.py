"""A whole run through the real command on a tiny model: it learns, records everything, repeats exactly, and ends."""

import json
import math
import os
import signal
import threading
from itertools import count
from types import SimpleNamespace

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_core.cli.main import main
from grpo_core.files.checkpoint import verify_checkpoint
from grpo_core.records.types import ComponentScore
from grpo_core.rewards.kinds import exact
from grpo_core.training.single import SingleTraining

from .runs import (
    metrics_of,
    outcome_of,
    rows,
    samples_of,
    spooled,
    train_here,
    write_problems,
)
from .tiny import config, load

STEPS, PROMPTS, GROUP = 16, 4, 64
BANDIT = {
    "sampling": {"group_size": GROUP, "prompts_per_step": PROMPTS, "max_completion_tokens": 1},
    "optim": {"steps": STEPS, "lr": 0.03},
    "eval": {"path": "heldout.jsonl"},
    "traces": {"groups_per_step": 2},
}


@pytest.fixture(scope="module")
def learned(home, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "bandit"
    assert train_here(home, out, "--spool", **BANDIT) == 0
    return out


def test_it_learns(learned):
    rewards = [metrics["reward"] for metrics in metrics_of(learned)]
    assert len(rewards) == STEPS
    assert rewards[0] < 0.05  # one letter of 258 bytes
    assert sum(rewards[-3:]) / 3 > 0.9
    before, after = (rows(learned / "evals" / f"{phase}.jsonl")[-1] for phase in ("before", "after"))
    assert (before["correct"], before["problems"]) == (0, 10)
    assert after["correct"] == 10  # on problems that were never trained on
    assert before["protocol"] == after["protocol"]
    assert outcome_of(learned)["status"] == "finished"


def test_everything_is_recorded(learned):
    assert yaml.safe_load((learned / "config.yaml").read_text()) == config(**BANDIT).to_dict()
    manifest = json.loads((learned / "manifest.json").read_text())
    assert manifest["model"]["weights"].keys() == {"model.safetensors"}
    assert manifest["data"]["train"]["problems"] == 16
    assert manifest["data"]["eval"]["prompt_tokens"] == {"min": 5, "mean": 5, "max": 5}
    assert manifest["config_digest"] == config(**BANDIT).digest()
    assert manifest["platform"]["threads"] == 1
    phases = [row["phase"] for row in rows(learned / "events.jsonl") if row["kind"] == "phase"]
    assert phases == ["loading", "evaluating_before", "training", "evaluating_after", "saving"]
    totals = outcome_of(learned)["totals"]
    assert totals["samples"] == totals["completion_tokens"] == STEPS * PROMPTS * GROUP
    assert totals["groups"] == totals["groups_mixed"] + totals["groups_all_equal"] == STEPS * PROMPTS
    assert totals["tokens"] == totals["completion_tokens"] * 6  # prompts have five tokens
    assert metrics_of(learned)[-1]["num_tokens"] == totals["tokens"]


def test_the_spool_holds_the_same_records_in_order(learned):
    envelopes = spooled(learned)
    assert [envelope["seq"] for envelope in envelopes] == list(range(1, len(envelopes) + 1))
    kinds = [envelope["record"]["kind"] for envelope in envelopes]
    assert [kinds.count(kind) for kind in ("step", "group", "eval_item")] == [STEPS, 2 * STEPS, 20]
    assert kinds[-1] == "outcome"
    assert kinds.index("manifest") < kinds.index("eval_item") < kinds.index("checkpoint") < kinds.index("step")


def test_weights_load_anywhere_and_give_the_measured_accuracy(learned, home, tmp_path):
    folder = learned / "checkpoints" / "final"
    manifest = verify_checkpoint(folder)
    assert manifest.step == STEPS
    assert "model.safetensors" in manifest.files
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("say z", return_tensors="pt")["input_ids"]
    assert tokenizer.decode(model.generate(ids, max_new_tokens=1, do_sample=False)[0, -1:]) == "k"
    assert not list(learned.glob("checkpoints/.*"))
    words = ["eval", str(home / "bandit.yaml"), "--model", str(folder), "--out"]
    assert main([*words, str(tmp_path / "e.jsonl")]) == 0
    *items, total = map(json.loads, (tmp_path / "e.jsonl").read_text().splitlines())
    assert (len(items), total["correct"]) == (10, 10)
    assert total["protocol"] == rows(learned / "evals/after.jsonl")[-1]["protocol"]
    assert main([*words, str(tmp_path / "nowhere/e.jsonl")]) == 2


def test_groups_show_what_decided(learned):
    for group in rows(learned / "samples" / "step-000005.jsonl"):
        rewards = [sample["reward"] for sample in group["samples"]]
        assert rewards == [float(sample["completion"] == "k") for sample in group["samples"]]
        assert len(rewards) == GROUP
        mean = sum(rewards) / GROUP
        std = math.sqrt(mean * (1 - mean))
        assert (group["reward_mean"], group["reward_std"]) == (pytest.approx(mean), pytest.approx(std))
        for sample in group["samples"]:
            expected = (sample["reward"] - mean) / (std + 1e-4) if std else 0.0
            assert sample["advantage"] == pytest.approx(expected)
            assert sample["finish_reason"] == ("length" if sample["completion"] else "eos")


def test_a_run_without_any_signal_changes_no_weight_and_warns(home, tmp_path):
    write_problems(home / "hopeless.jsonl", ["p"], lambda prompt: "never drawn")
    out = tmp_path / "dead"
    assert train_here(home, out, data={"path": "hopeless.jsonl"}) == 0
    end = outcome_of(out)
    assert (end["status"], end["totals"]["groups"], end["totals"]["groups_mixed"]) == ("finished", 4, 0)
    assert "No group carried a signal" in end["message"]
    for name in ("frac_reward_zero_std", "groups/all_wrong"):
        assert [metrics[name] for metrics in metrics_of(out)] == [1.0, 1.0]
    before, after = (load(folder).model.state_dict() for folder in (home / "base", out / "checkpoints/final"))
    assert all(torch.equal(before[name], after[name]) for name in before)


# ---------------------------------------------------------------------- rewards that raise, defects


@pytest.fixture
def raising(monkeypatch):
    """The reward kind `exact`, broken for completions that begin with a byte below 128, or for all; from the start, or
    after so many completions."""

    def install(*, always, after=0):
        calls = count()

        def score(sample, params):
            if sample.tokens == 0:  # the reference is read before the run, with no completion
                return ComponentScore(value=0.0, passed=False)
            if next(calls) >= after and (always or sample.completion[:1].isascii()):
                raise ZeroDivisionError("no such number")
            return ComponentScore(value=float(len(sample.completion) % 2), passed=False)

        monkeypatch.setattr(exact, "score", score)

    return install


def reward(policy):
    return {"components": [{"name": "answer", "kind": "exact"}], "on_error": policy}


@pytest.mark.parametrize(("policy", "value", "cause"), [("mask", None, "reward_error"), ("zero", 0.0, None)])
def test_a_reward_that_raises_masks_the_sample_or_pays_zero(home, tmp_path, raising, policy, value, cause):
    raising(always=False)
    assert train_here(home, tmp_path / "run", reward=reward(policy), optim={"steps": 1}) == 0
    samples = samples_of(tmp_path / "run")
    failed = [sample for sample in samples if sample["completion"][:1].isascii()]
    assert 0 < len(failed) < len(samples)
    for sample in failed:
        assert (sample["reward"], sample["mask_cause"]) == (value, cause)
        assert cause is None or sample["advantage"] == 0.0
        assert sample["components"]["answer"]["error"] == "ZeroDivisionError: no such number"
    (metrics,) = metrics_of(tmp_path / "run")
    assert metrics["masked/reward_error"] == (len(failed) if cause else 0)
    assert metrics["reward_errors"] == metrics["reward_errors/verifier"] == len(failed)
    assert "reward_errors/infra" not in metrics


def test_a_reward_that_raises_ends_the_run_and_what_was_recorded_before_is_kept(home, tmp_path, raising):
    """10 held-out problems, then 8 completions a step: the first of step 3 raises."""
    raising(always=True, after=10 + 2 * 8)
    parts = {"eval": {"path": "heldout.jsonl"}, "optim": {"steps": 5}, "reward": reward("fail")}
    out = tmp_path / "run"
    assert train_here(home, out, "--spool", **parts) == 5
    end = outcome_of(out)
    assert (end["status"], end["code"], end["steps_done"]) == ("failed", "reward_error", 2)
    assert "no such number" in end["message"]
    assert [row["step"] for row in rows(out / "metrics.jsonl")] == [1, 2]
    assert len(rows(out / "evals/before.jsonl")) == 10 + 1
    kinds = [envelope["record"]["kind"] for envelope in spooled(out)]
    assert [kinds.count(kind) for kind in ("eval_item", "eval_result", "step")] == [10, 1, 2]
    assert kinds[-1] == "outcome"


def test_sigterm_ends_the_run_in_order(home, tmp_path, monkeypatch):
    update, calls = SingleTraining.update, count(1)

    def interrupted(self, *given, **named):
        if next(calls) == 3:
            assert threading.current_thread() is threading.main_thread()
            os.kill(os.getpid(), signal.SIGTERM)
        return update(self, *given, **named)

    monkeypatch.setattr(SingleTraining, "update", interrupted)
    out = tmp_path / "run"
    assert train_here(home, out, "--spool", optim={"steps": 100_000}) == 75
    end = outcome_of(out)
    assert (end["status"], end["code"]) == ("stopped", "interrupted")
    assert end["steps_done"] == len(metrics_of(out)) >= 2
    assert "SIGTERM" in end["message"]
    assert spooled(out)[-1]["record"]["kind"] == "outcome"


# ---------------------------------------------------------------------- energy


METER = SimpleNamespace(words="a test's counter", take=lambda: 5)  # joules each time


@pytest.mark.parametrize(("first", "then", "total"), [(METER, METER, True), (METER, None, False), (None, METER, False)])
def test_energy_is_totalled_only_where_all_of_the_run_was_measured(home, tmp_path, monkeypatch, first, then, total):
    """A run that resumes where no meter can be read does not pass its first part's joules off as the whole."""
    out = tmp_path / "run"
    for meter, planned, more in ((first, 1, []), (then, 2, ["--resume"])):
        monkeypatch.setattr("grpo_core.trainer.trainer.meter", lambda device, world, meter=meter: meter)
        assert train_here(home, out, *more, optim={"steps": planned}) == 0
    assert outcome_of(out)["steps_done"] == 2
    assert ("energy_joules" in outcome_of(out)["totals"]) is total
