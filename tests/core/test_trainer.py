"""A whole run through the real command on a tiny model: it learns, writes everything down, repeats exactly."""

import json
import math
import signal
import subprocess
import sys
from itertools import count

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_core.checkpoint_files import verify_checkpoint
from grpo_core.cli import main
from grpo_core.records import ENVELOPE, ComponentScore
from grpo_core.rewards import exact
from grpo_core.spool import SpoolReader
from tests.needs import GSM8K, needs
from tests.processes import wait_for

from .runs import OF_THE_MACHINE
from .tiny import config, load, tiny_folder

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a tiny model `base` and problems whose right answer is always the one letter k."""
    folder = tmp_path_factory.mktemp("home")
    tiny_folder(folder / "base")
    write(folder / "train.jsonl", [{"prompt": f"say {letter}", "answer": "k"} for letter in LETTERS[:16]])
    write(folder / "heldout.jsonl", [{"prompt": f"say {letter}", "answer": "k"} for letter in LETTERS[16:]])
    return folder


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def train(home, out, *, spool=False, **parts):
    """Run the command in this process; returns its exit status."""
    path = home / f"{out.name}.yaml"
    path.write_text(config(**parts).to_yaml(), encoding="utf-8")
    return main(["train", str(path), "--out", str(out), *(["--spool"] if spool else [])])


def rows(path):
    return [json.loads(line)["record"] for line in path.read_text(encoding="utf-8").splitlines()]


def steps(out):
    return [row["metrics"] for row in rows(out / "metrics.jsonl")]


def outcome(out):
    return json.loads((out / "outcome.json").read_text())


BANDIT = {
    "sampling": {"group_size": 64, "prompts_per_step": 8, "max_completion_tokens": 1},
    "optim": {"steps": 40, "lr": 0.01},
    "eval": {"path": "heldout.jsonl"},
    "traces": {"groups_per_step": 2},
}


@pytest.fixture(scope="module")
def learned(home, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "bandit"
    assert train(home, out, spool=True, **BANDIT) == 0
    return out


def test_it_learns(learned):
    rewards = [metrics["reward"] for metrics in steps(learned)]
    assert len(rewards) == 40
    assert rewards[0] < 0.05  # one letter of 258 bytes
    assert sum(rewards[-3:]) / 3 > 0.9
    before, after = (rows(learned / "evals" / f"{phase}.jsonl")[-1] for phase in ("before", "after"))
    assert (before["correct"], before["problems"]) == (0, 10)
    assert after["correct"] == 10  # on problems that were never trained on
    assert before["protocol"] == after["protocol"]
    assert outcome(learned)["status"] == "finished"


def test_everything_is_written_down(learned, home):
    assert yaml.safe_load((learned / "config.yaml").read_text()) == config(**BANDIT).to_dict()
    manifest = json.loads((learned / "manifest.json").read_text())
    assert manifest["model"]["weights"].keys() == {"model.safetensors"}
    assert manifest["data"]["train"]["problems"] == 16
    assert manifest["data"]["eval"]["prompt_tokens"] == {"min": 5, "mean": 5, "max": 5}
    assert manifest["config_digest"] == config(**BANDIT).digest()
    assert manifest["platform"]["threads"] == 1
    phases = [row["phase"] for row in rows(learned / "events.jsonl") if row["kind"] == "phase"]
    assert phases == ["loading", "evaluating_before", "training", "evaluating_after", "saving"]
    totals = outcome(learned)["totals"]
    assert totals["samples"] == 40 * 8 * 64
    assert totals["groups"] == 320
    assert totals["groups_mixed"] + totals["groups_all_equal"] == 320
    assert totals["completion_tokens"] == 40 * 8 * 64
    assert totals["tokens"] == totals["completion_tokens"] * 6  # prompts have five tokens
    assert steps(learned)[-1]["num_tokens"] == totals["tokens"]


def test_the_spool_holds_the_same_records_in_order(learned):
    reader = SpoolReader(learned / "spool")
    spooled = []
    while new := reader.read_new():
        spooled += [ENVELOPE.validate_json(record.body) for record in new]
    assert [envelope.seq for envelope in spooled] == list(range(1, len(spooled) + 1))
    kinds = [envelope.record.kind for envelope in spooled]
    assert kinds.count("step") == 40
    assert kinds.count("group") == 80
    assert kinds.count("eval_item") == 20
    assert kinds[-1] == "outcome"
    assert kinds.index("manifest") < kinds.index("eval_item") < kinds.index("checkpoint") < kinds.index("step")


def test_weights_load_anywhere_and_give_the_measured_accuracy(learned, home):
    folder = learned / "checkpoints" / "final"
    manifest = verify_checkpoint(folder)
    assert manifest.step == 40
    assert "model.safetensors" in manifest.files
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("say z", return_tensors="pt")["input_ids"]
    assert tokenizer.decode(model.generate(ids, max_new_tokens=1, do_sample=False)[0, -1:]) == "k"
    assert not list(learned.glob("checkpoints/.*"))


def test_groups_show_what_decided(learned):
    for group in rows(learned / "samples" / "step-000005.jsonl"):
        assert len(group["samples"]) == 64
        rewards = [sample["reward"] for sample in group["samples"]]
        assert rewards == [float(sample["completion"] == "k") for sample in group["samples"]]
        mean = sum(rewards) / 64
        std = math.sqrt(mean * (1 - mean))
        assert group["reward_mean"] == pytest.approx(mean)
        assert group["reward_std"] == pytest.approx(std)
        for sample in group["samples"]:
            expected = (sample["reward"] - mean) / (std + 1e-4) if std else 0.0
            assert sample["advantage"] == pytest.approx(expected)
            assert sample["finish_reason"] == ("length" if sample["completion"] else "eos")


def test_eval_command_measures_the_same(learned, home, tmp_path, capsys):
    path = home / "bandit.yaml"
    assert (
        main(["eval", str(path), "--model", str(learned / "checkpoints/final"), "--out", str(tmp_path / "e.jsonl")])
        == 0
    )
    said = capsys.readouterr().out
    assert "evaluating 10/10 · problems answered" in said
    assert "10 of 10 right = 100.0%" in said
    lines = (tmp_path / "e.jsonl").read_text().splitlines()
    assert len(lines) == 11
    assert json.loads(lines[-1])["protocol"] == rows(learned / "evals/after.jsonl")[-1]["protocol"]


def test_eval_says_before_the_work_that_the_answers_cannot_be_written(home, tmp_path, capsys):
    assert main(["eval", str(home / "bandit.yaml"), "--out", str(tmp_path / "nowhere/e.jsonl")]) == 2
    said = capsys.readouterr()
    assert "cannot write" in said.err
    assert "accuracy" not in said.out


def test_same_config_same_numbers_and_weights(home, tmp_path):
    parts = {**BANDIT, "optim": {"steps": 4, "lr": 0.01}, "algorithm": {"kl": {"coef": 0.01}, "inner_iterations": 2}}
    for name in ("one", "two"):
        assert train(home, tmp_path / name, **parts) == 0
    first, second = steps(tmp_path / "one"), steps(tmp_path / "two")
    for metrics in (*first, *second):
        assert metrics.pop("samples_per_second") > 0
        for name in [name for name in metrics if name.split("/")[0] in OF_THE_MACHINE]:
            assert metrics.pop(name) > 0
    assert first == second
    digests = {
        verify_checkpoint(tmp_path / name / "checkpoints/final").files["model.safetensors"].sha256
        for name in ("one", "two")
    }
    assert len(digests) == 1
    assert train(home, tmp_path / "three", **{**parts, "seed": 1}) == 0
    assert steps(tmp_path / "three")[0]["loss"] != first[0]["loss"]


def test_metrics_that_have_no_meaning_are_absent(home, tmp_path):
    assert train(home, tmp_path / "plain") == 0
    assert train(home, tmp_path / "kl", algorithm={"kl": {"coef": 0.04}}) == 0
    plain, kl = steps(tmp_path / "plain"), steps(tmp_path / "kl")
    assert not any(name.startswith(("kl", "clip_ratio")) for name in plain[0])
    assert kl[0]["kl"] == 0.0  # the policy still is the reference
    assert not (tmp_path / "plain" / "evals" / "before.jsonl").exists()


def test_prompts_longer_than_others_and_small_batches(home, tmp_path):
    """Many uneven prompts, few rows at once: every group is whole and belongs to its prompt."""
    data = [{"prompt": "x" * (1 + 7 * n), "answer": "k"} for n in range(9)]
    write(home / "uneven.jsonl", data)
    parts = {
        "data": {"path": "uneven.jsonl"},
        "sampling": {"group_size": 3, "prompts_per_step": 9, "max_completion_tokens": 4},
        "engine": {"threads": 1, "rollout_batch": 4, "micro_batch_tokens": 50},
        "optim": {"steps": 1},
    }
    assert train(home, tmp_path / "uneven", **parts) == 0
    groups = rows(tmp_path / "uneven/samples/step-000001.jsonl")
    assert sorted(len(group["prompt"]) for group in groups) == [1 + 7 * n for n in range(9)]
    assert all(len(group["samples"]) == 3 for group in groups)


def test_no_signal_is_said(home, tmp_path, capsys):
    write(home / "hopeless.jsonl", [{"prompt": "p", "answer": "never said"}])
    assert train(home, tmp_path / "dead", data={"path": "hopeless.jsonl"}) == 0
    end = outcome(tmp_path / "dead")
    assert end["status"] == "finished"
    assert end["message"].startswith("No group carried a signal: the rewards of a group were equal in every one of 4")
    assert (end["totals"]["groups"], end["totals"]["groups_mixed"]) == (4, 0)
    assert "No group carried a signal" in capsys.readouterr().out
    assert [m["frac_reward_zero_std"] for m in steps(tmp_path / "dead")] == [1.0, 1.0]
    assert [m["groups/all_wrong"] for m in steps(tmp_path / "dead")] == [1.0, 1.0]
    before = load(home / "base").model.state_dict()
    after = load(tmp_path / "dead/checkpoints/final").model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


# ---------------------------------------------------------------------- rewards that raise


@pytest.fixture
def raising(monkeypatch):
    """The reward kind `exact`, broken for completions that begin with a byte below 128, or for all; from the start, or
    after so many completions."""

    def install(*, always, after=0):
        calls = count()

        def score(sample, params):
            if next(calls) >= after and (always or sample.completion[:1].isascii()):
                raise ZeroDivisionError("no such number")
            return ComponentScore(value=float(len(sample.completion) % 2), passed=False)

        monkeypatch.setattr(exact, "score", score)

    return install


def reward(policy):
    return {"components": [{"name": "answer", "kind": "exact"}], "on_error": policy}


def test_raising_reward_masks_the_sample(home, tmp_path, raising):
    raising(always=False)
    assert train(home, tmp_path / "run", reward=reward("mask")) == 0
    samples = [s for group in rows(tmp_path / "run/samples/step-000001.jsonl") for s in group["samples"]]
    failed = [s for s in samples if s["completion"][:1].isascii()]
    assert 0 < len(failed) < len(samples)
    for sample in failed:
        assert (sample["reward"], sample["advantage"], sample["mask_cause"]) == (None, 0.0, "reward_error")
        assert sample["components"]["answer"]["error"] == "ZeroDivisionError: no such number"
    metrics = steps(tmp_path / "run")[0]
    assert metrics["masked/reward_error"] == metrics["reward_errors"] == len(failed)
    assert metrics["reward_errors/verifier"] == len(failed)
    assert "reward_errors/infra" not in metrics


def test_raising_reward_pays_zero(home, tmp_path, raising):
    raising(always=False)
    assert train(home, tmp_path / "run", reward=reward("zero")) == 0
    samples = [s for group in rows(tmp_path / "run/samples/step-000001.jsonl") for s in group["samples"]]
    failed = [s for s in samples if s["completion"][:1].isascii()]
    assert failed
    assert all(s["reward"] == 0.0 and s["mask_cause"] is None for s in failed)
    metrics = steps(tmp_path / "run")[0]
    assert (metrics["masked/reward_error"], metrics["reward_errors"]) == (0, len(failed))


def test_raising_reward_ends_the_run(home, tmp_path, raising, capsys):
    raising(always=False)
    assert train(home, tmp_path / "run", reward=reward("fail")) == 5
    end = outcome(tmp_path / "run")
    assert (end["status"], end["code"]) == ("failed", "reward_error")
    assert "no such number" in end["message"]
    assert "no such number" in capsys.readouterr().err


def test_what_was_stored_before_a_reward_raises_is_kept(home, tmp_path, raising):
    """10 held-out problems, then 8 completions a step: the first of step 3 raises."""
    raising(always=True, after=10 + 2 * 8)
    parts = {"eval": {"path": "heldout.jsonl"}, "optim": {"steps": 5}, "reward": reward("fail")}
    out = tmp_path / "run"
    assert train(home, out, spool=True, **parts) == 5
    end = outcome(out)
    assert (end["status"], end["code"], end["steps_done"]) == ("failed", "reward_error", 2)
    assert [row["step"] for row in rows(out / "metrics.jsonl")] == [1, 2]
    assert len(rows(out / "evals/before.jsonl")) == 10 + 1
    spooled = [
        json.loads(record.body)["record"]
        for record in SpoolReader(out / "spool").read_new(limit=10**6, max_bytes=10**9)
    ]
    kinds = [record["kind"] for record in spooled]
    assert [kinds.count(kind) for kind in ("eval_item", "eval_result", "step")] == [10, 1, 2]
    assert kinds[-1] == "outcome"


def test_a_step_without_any_score_ends_the_run(home, tmp_path, raising):
    raising(always=True)
    assert train(home, tmp_path / "run", reward=reward("mask")) == 5
    assert "step 1: no completion could be scored" in outcome(tmp_path / "run")["message"]


def test_a_defect_of_ours_keeps_its_trace(home, tmp_path, monkeypatch):
    from grpo_core.training.single import SingleTraining

    def broken(self, rows, *, step, returns):
        raise RuntimeError("a screw is loose")

    monkeypatch.setattr(SingleTraining, "update", broken)
    with pytest.raises(RuntimeError, match="screw"):
        train(home, tmp_path / "run")
    end = outcome(tmp_path / "run")
    assert (end["status"], end["code"]) == ("failed", "internal_error")
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "Traceback" in log
    assert "a screw is loose" in log


# ---------------------------------------------------------------------- stopping


def test_sigterm_ends_the_run_in_order(home, tmp_path):
    path = home / "long.yaml"
    path.write_text(config(optim={"steps": 100_000}).to_yaml(), encoding="utf-8")
    out = tmp_path / "run"
    child = subprocess.Popen([sys.executable, "-m", "grpo_core.cli", "train", str(path), "--out", str(out), "--spool"])
    try:
        written = out / "metrics.jsonl"
        wait_for(lambda: written.exists() and written.stat().st_size, "no step was written", child)
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=120) == 75
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    end = outcome(out)
    assert (end["status"], end["code"]) == ("stopped", "interrupted")
    assert end["steps_done"] == len(steps(out)) >= 1
    assert "SIGTERM" in end["message"]
    last = [json.loads(record.body) for record in SpoolReader(out / "spool").read_new(limit=10**6, max_bytes=10**9)][-1]
    assert last["record"]["kind"] == "outcome"


# ---------------------------------------------------------------------- GSM8K, and energy


def test_gsm8k_runs_and_says_that_nothing_was_learned(home, hardly_taught, tmp_path):
    """The demo's model is far too small for these problems, and the run must say so."""
    needs("gsm8k")
    parts = {
        "preset": "demo",
        "model": {"path": str(hardly_taught)},
        "data": {"path": str(GSM8K), "format": "gsm8k", "limit": 64},
        "sampling": {"group_size": 4, "prompts_per_step": 8},
        "reward": {"components": [{"name": "answer", "kind": "numeric", "params": {"extract": "hashes"}}]},
        "optim": {"steps": 3},
    }
    assert train(home, tmp_path / "run", **parts) == 0
    end = outcome(tmp_path / "run")
    assert end["message"].startswith("No group carried a signal")
    assert (end["totals"]["groups"], end["totals"]["groups_mixed"]) == (24, 0)
    assert [m["frac_reward_zero_std"] for m in steps(tmp_path / "run")] == [1.0, 1.0, 1.0]


class Joules:
    """A meter that counts 5 J each time."""

    words = "a test's counter"

    def take(self):
        return 5


@pytest.mark.parametrize(
    ("first", "then", "told"), [(Joules, Joules, True), (Joules, None, False), (None, Joules, False)]
)
def test_energy_is_told_only_where_all_of_the_run_was_measured(home, tmp_path, monkeypatch, first, then, told):
    """A run that goes on where no meter can be read does not pass its first part's joules off as the whole."""
    out = tmp_path / "run"
    for kind, planned, more in ((first, 1, []), (then, 2, ["--resume"])):
        monkeypatch.setattr("grpo_core.trainer.meter", lambda device, world, kind=kind: kind and kind())
        path = home / "energy.yaml"
        path.write_text(config(optim={"steps": planned}).to_yaml(), encoding="utf-8")
        assert main(["train", str(path), "--out", str(out), *more]) == 0
    assert outcome(out)["steps_done"] == 2
    assert ("energy_joules" in outcome(out)["totals"]) is told
