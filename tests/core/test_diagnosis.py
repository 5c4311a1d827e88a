"""Each cause that a run can say is wrong with it, by a real run that has it: at its first step, in its record, in the
terminal and in its last words."""

import itertools
import random
from dataclasses import replace

import pytest

from grpo_core.config.run import RunConfig
from grpo_core.files.checkpoint import verify_checkpoint
from grpo_core.monitors.base import Evidence
from grpo_core.records.types import ComponentScore
from grpo_core.rewards.kinds import exact
from grpo_core.rollout.local import LocalRollout
from grpo_core.text import format_percent
from grpo_core.trainer.diagnosis import findings

from .runs import (
    LETTERS,
    groups_of,
    metrics_of,
    names_of_steps,
    outcome_of,
    rows,
    samples_of,
    train_here,
    write_problems,
)

SIZES = {"group_size": 4, "prompts_per_step": 4, "max_completion_tokens": 8}
LENGTH = {"name": "short", "kind": "length", "weight": 0.1, "params": {"unit": "tokens", "most": 1, "limit": 9}}
RIGHT = {"name": "right", "kind": "exact", "params": {"extract": "whole"}}


def begun(out):
    """(step, cause) of every diagnosis, in order."""
    events = [row for row in rows(out / "events.jsonl") if row.get("type") == "diagnosis"]
    return [(event["data"]["step"], event["data"]["cause"]) for event in events]


def texts(out):
    return {
        row["data"]["cause"]: row["data"]["text"]
        for row in rows(out / "events.jsonl")
        if row.get("type") == "diagnosis"
    }


@pytest.fixture(scope="module")
def homes(home):
    """With problems that no completion answers."""
    write_problems(home / "unreachable.jsonl", [f"say {letter}" for letter in LETTERS], lambda prompt: "98765")
    return home


def train(home, out, **parts):
    assert train_here(home, out, **{"sampling": SIZES, "optim": {"steps": 2, "lr": 1e-3}, **parts}) == 0
    return outcome_of(out)["message"]


def test_all_cut_off_and_no_end_token(homes, tmp_path, capsys):
    """The untaught model has 258 tokens of about equal probability, one of which ends: in 64 it is never sampled."""
    out = tmp_path / "run"
    words = train(homes, out, sampling={**SIZES, "max_completion_tokens": 2}, seed=3)
    first = [cause for step, cause in begun(out) if step == 1]
    assert first == ["cut_off", "end_never_sampled"], "that all are wrong has this cause, and no other advice"
    assert texts(out)["cut_off"] == "16 of 16 completions were truncated at 2 tokens."
    printed = capsys.readouterr().out
    assert "step 1: 16 of 16 completions were truncated at 2 tokens. Raise sampling.max_completion_tokens" in printed
    assert "32 of 32 completions were truncated at 2 tokens." in words
    assert "An end token (<|end|>) was never sampled in 32 completions." in words
    assert "easier problems" not in words


def test_all_right_and_all_wrong_are_two_sentences(homes, tmp_path):
    anything = {"components": [{"name": "right", "kind": "regex", "params": {"pattern": "(?s).*", "extract": "whole"}}]}
    easy = train(homes, tmp_path / "easy", reward=anything)
    hard = train(homes, tmp_path / "hard", reward={"components": [RIGHT]}, **HOPELESS)
    assert (1, "all_right") in begun(tmp_path / "easy")
    assert (1, "all_wrong") in begun(tmp_path / "hard")
    assert "All completions are right in 8 of 8 groups. There is nothing left to learn" in easy
    assert "harder" in easy
    assert "easier" not in easy
    assert "All completions are wrong in 8 of 8 groups. Use easier problems" in hard
    for words in (easy, hard):
        assert words.startswith("No group carried a signal in 2 steps (8 groups)")


def test_no_answer_is_said_with_what_the_verifier_saw(homes, tmp_path, capsys):
    reward = {"components": [{**RIGHT, "params": {"extract": "answer_tag"}}]}
    train(homes, tmp_path / "run", reward=reward, model={"path": "ends"})
    assert (1, "no_answer") in begun(tmp_path / "run")
    assert texts(tmp_path / "run")["no_answer"] == "The verifier right saw no answer in 16 of 16 completions."
    seen = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  it saw: …")]
    completions = [sample["completion"] for sample in samples_of(tmp_path / "run")]
    assert seen == [f"  it saw: …{text[-120:]!r}" for text in completions[:3]]
    assert len(seen) == 3


# ---------------------------------------------------------------------- shaping


HOPELESS = {"data": {"path": "unreachable.jsonl"}, "model": {"path": "ends"}}


@pytest.mark.parametrize("gate", ["success", "reward"])
def test_groups_in_which_shaping_alone_varies(homes, tmp_path, gate):
    """Answers are never right, and short ones are paid a tenth."""
    out = tmp_path / "run"
    parts = {"reward": {"components": [RIGHT, LENGTH]}, "algorithm": {"signal_gate": gate}, **HOPELESS}
    words = train(homes, out, **parts)
    assert (1, "shaping_alone") in begun(out)
    for group in groups_of(out):
        assert group["signal"] == "phantom"
        assert group["reward_std"] > 0.001
        advantages = [abs(sample["advantage"]) for sample in group["samples"]]
        assert (max(advantages) > 0.5) is (gate == "reward")
    totals, informative = outcome_of(out)["totals"], gate == "reward"
    assert (totals["groups"], totals["groups_phantom"], totals["groups_mixed"]) == (8, 8, 0)
    for metrics in metrics_of(out):
        assert (metrics["frac_phantom"], metrics["frac_informative"]) == (1, informative)
        assert metrics["frac_reward_zero_std"] == 0
        assert (metrics["grad_norm"] > 0) is informative
    carried = "8 of 8 groups carried a signal" if informative else "No group carried a signal in 2 steps (8 groups)"
    assert carried in words
    assert "In 8 of 8 groups rewards differ by short alone while right does not" in words


def test_dynamic_sampling_and_the_last_words_count_alike(homes, tmp_path):
    """Lengths differ under the soft overlong punishment, and nothing is right."""
    out = tmp_path / "run"
    algorithm = {
        "mini_batches": 2,
        "dynamic_sampling": {"enabled": True, "max_batches": 2},
        "overlong": {"buffer_tokens": 6, "penalty": 1.0},
    }
    words = train(homes, out, reward={"components": [RIGHT]}, algorithm=algorithm, **HOPELESS)
    metrics, totals = metrics_of(out), outcome_of(out)["totals"]
    assert totals["groups_phantom"] > 0
    assert totals["groups_mixed"] == 0
    assert totals["groups_discarded"] == totals["groups"] == totals["discarded_all_wrong"] == 16
    assert all(row["frac_informative"] == 0 for row in metrics)
    assert "No group carried a signal in 2 steps (16 groups)" in words
    for row in metrics:  # a step without an update has no clip ratio
        assert not [name for name in row if name.startswith("clip_ratio")]


@pytest.fixture
def scored(monkeypatch):
    """The kind `exact`, by another rule."""
    return lambda rule: monkeypatch.setattr(exact, "score", lambda sample, params: rule(sample))


def test_noise_is_no_signal(homes, tmp_path, scored):
    noise = random.Random(0)
    scored(lambda sample: ComponentScore(value=0.37 + noise.random() * 1e-5))
    words = train(homes, tmp_path / "run", reward={"components": [RIGHT]}, optim={"steps": 1, "lr": 1e-3})
    assert words.startswith("No group carried a signal in 1 step (4 groups)")
    assert (1, "all_equal") in begun(tmp_path / "run")
    assert {sample["advantage"] for sample in samples_of(tmp_path / "run")} == {0.0}
    assert "Every reward is equal within 4 of 4 groups: none is further from another than 0.0001 of its size." in words


def test_completions_that_cannot_be_scored(homes, tmp_path, scored):
    """Two of five raise: they are left out, and counted in the last words as in the record."""
    numbers = itertools.count()

    def rule(sample):
        if sample.completion and next(numbers) % 5 < 2:  # the reference is read before the run, with no completion
            raise ZeroDivisionError("no such number")
        return ComponentScore(value=float(len(sample.completion) % 2), passed=bool(len(sample.completion) % 2))

    scored(rule)
    parts = {"sampling": {**SIZES, "group_size": 5}, "eval": {"path": "heldout.jsonl"}}
    words = train(homes, tmp_path / "run", reward={"components": [RIGHT]}, **parts)
    first = texts(tmp_path / "run")["part_unscored"]
    assert first == (
        "8 of 20 completions could not be scored (verifier 8); 8 of them were left out. The first error: "
        "ZeroDivisionError: no such number."
    )
    assert "16 of 40 completions could not be scored (verifier 16); 16 of them were left out." in words
    assert [row["frac_unscored"] for row in metrics_of(tmp_path / "run")] == [0.4, 0.4]
    before = rows(tmp_path / "run/evals/before.jsonl")[-1]
    assert (before["problems"], before["errors"]) == (10, 4)
    log = (tmp_path / "run/log.txt").read_text()
    right = before["correct"]
    assert f"accuracy before: {right:g} of 6 ({format_percent(right / 6)}); {6 - right:g} wrong, 4 could not" in log


def test_sampler_and_trainer_differ(homes, tmp_path, monkeypatch):
    """The sampler draws at another temperature than it is asked for."""
    generate = LocalRollout.generate

    def warmer(self, prompts, *, decoding, **more):
        return generate(self, prompts, decoding=replace(decoding, temperature=0.1), **more)

    monkeypatch.setattr(LocalRollout, "generate", warmer)
    parts = {"model": {"path": "ends"}, "reward": {"components": [LENGTH]}}
    train(homes, tmp_path / "run", **parts)
    (metrics, *_) = metrics_of(tmp_path / "run")
    assert (1, "sampler_differs") in begun(tmp_path / "run")
    far = metrics["sampling/logp_difference/mean"]
    assert f"differ by {far:.3g} nats a token" in texts(tmp_path / "run")["sampler_differs"]


def test_settings_that_make_sampler_and_trainer_differ_are_the_ones_named():
    def advice(**parts):
        whole = {
            "data": {"path": "d"},
            "reward": {"components": [RIGHT]},
            "model": {"path": "m"},
            "eval": {"path": "e"},
        }
        newest = {"sampling/logp_difference/mean": 0.06, "sampling/logp_difference/max": 0.5}
        (finding,) = findings(Evidence({}, RunConfig.from_dict(whole | parts), metrics=newest))
        return finding.advice

    uncorrected = {"correction": {"mode": "none"}}
    assert "top_p" not in advice(model={"path": "m", "dtype": "bfloat16"})
    assert "take model.dtype float32" in advice(model={"path": "m", "dtype": "bfloat16"})
    assert advice(sampling={"top_p": 0.9}, algorithm=uncorrected).startswith("Take top_p 1")
    assert "newest weights" in advice()


# ---------------------------------------------------------------------- a ruinous update


def various(sample):
    """Various letters are right, as the untaught model writes them; after a step of rate 30 it repeats one."""
    right = len(set(sample.completion)) > 4
    return ComponentScore(value=float(right), passed=right)


def test_an_update_that_ruins_the_policy_is_named_and_the_checkpoint_before_it_is_kept(homes, tmp_path, scored):
    scored(various)
    out = tmp_path / "run"
    parts = {"sampling": {**SIZES, "group_size": 16}, "checkpoints": {"every": 1}, "algorithm": {"kl": {"coef": 0.04}}}
    words = train(homes, out, **parts, optim={"steps": 6, "lr": 30.0, "max_grad_norm": 1000.0})
    (event,) = [row for row in rows(out / "events.jsonl") if row.get("data", {}).get("cause") == "ruined"]
    assert (event["data"]["step"], event["data"]["text"].partition(":")[0]) == (
        2,
        "The update of step 1 ruined the policy",
    )
    before = metrics_of(out)[0]["reward"]
    assert f"{format_percent(before)} of completions were right before it and 0 % after it" in event["data"]["text"]
    assert "entropy went from" in event["data"]["text"]
    assert "its learning rate was 30" in event["data"]["text"]
    assert event["data"]["advice"].startswith("step-000000 is the last checkpoint from before it and is kept")
    assert names_of_steps(out) == ["step-000000", "step-000005", "step-000006"]
    assert verify_checkpoint(out / "checkpoints/step-000000").step == 0
    assert event["data"]["kept"] == 0
    assert "The policy was ruined, as was reported at step 2; step-000000 is the last checkpoint from bef" in words


def test_that_the_last_update_ruins_the_policy_is_seen_by_the_held_out_problems(homes, tmp_path, scored):
    scored(various)
    out = tmp_path / "run"
    parts = {"sampling": {**SIZES, "group_size": 16}, "eval": {"path": "unreachable.jsonl", "temperature": 1.0}}
    words = train(homes, out, **parts, optim={"steps": 1, "lr": 30.0, "max_grad_norm": 1000.0})
    (event,) = [row for row in rows(out / "events.jsonl") if row.get("data", {}).get("cause") == "ruined"]
    assert (event["data"]["step"], event["data"]["kept"]) == (1, 0)
    assert event["data"]["text"].startswith("The update of step 1 ruined the policy: ")
    right = format_percent(rows(out / "evals/before.jsonl")[-1]["correct"] / len(LETTERS))
    assert event["data"]["text"].endswith(f"problems show it: {right} were right before training, 0 % are now.")
    assert "The policy was ruined, as was reported at step 1; step-000000 is the last checkpoint from bef" in words
