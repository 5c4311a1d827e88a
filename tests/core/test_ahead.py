"""Drawing ahead (engine.one_step_off): from which policy, what a step says of it, how it stops and fails."""

import threading
from itertools import count
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import torch

from grpo_core.config.run import LoraConfig, RunConfig
from grpo_core.errors import Interrupted, RewardError
from grpo_core.files.checkpoint import step_folder
from grpo_core.model.logprobs import completion_logprobs
from grpo_core.model.lora import add_adapters
from grpo_core.records.types import ComponentScore
from grpo_core.rewards.kinds import exact
from grpo_core.rollout.base import Decoding
from grpo_core.rollout.local import LocalRollout
from grpo_core.rollout.policy_snapshot import SnapshotRollout, snapshot_policy
from grpo_core.trainer import sampling as draw
from grpo_core.trainer.checkpoints.state import read_state
from grpo_core.trainer.grpo import GrpoTrainer
from grpo_core.trainer.prefetch import RolloutPrefetcher

from .runs import groups_of, metrics_of, outcome_of, result, rows, setting, train_here, warnings_of
from .test_keeping import at_check, cut_at, steps_in, stop
from .test_trainer import BANDIT
from .tiny import load, sharpen, tiny_folder

AHEAD = {"one_step_off": True}
CPU = torch.device("cpu")


# ---------------------------------------------------------------------- the thread


def test_work_runs_in_a_thread_and_its_errors_reach_the_trainer() -> None:
    ahead, ran_in, error = RolloutPrefetcher(lambda: None, CPU), [], RewardError("no such number")

    def broken() -> None:
        raise error

    ahead.wait()  # for nothing
    for _ in range(2):
        ahead.begin(lambda: ran_in.append(threading.get_ident()))
        ahead.wait()
    assert len(ran_in) == 2
    assert len(set(ran_in)) == 1
    assert ran_in[0] != threading.get_ident()
    ahead.begin(broken)
    with pytest.raises(RewardError) as raised:
        ahead.wait()
    assert raised.value is error
    ahead.close()


def test_a_stop_is_met_while_waiting_and_ends_the_work() -> None:
    """The work never asks by itself: only the trainer's thread does."""
    checked_in: list[int] = []
    ends: list[str] = []

    def check() -> None:
        checked_in.append(threading.get_ident())
        if len(checked_in) == 3:
            raise Interrupted("asked to stop by a test")

    ahead = RolloutPrefetcher(check, CPU)

    def work() -> None:
        try:
            while True:
                ahead.check()
        except Interrupted as leaving:
            ends.append(str(leaving))
            raise

    ahead.begin(work)
    with pytest.raises(Interrupted, match="by a test"):
        ahead.wait()
    ahead.close()
    ahead.close()
    assert ends == ["the trainer leaves"]
    assert set(checked_in) == {threading.get_ident()}


# ---------------------------------------------------------------------- the copy

PROMPTS = [[5, 6, 7], [8, 9]]
DECODING = Decoding(max_tokens=6)


def sampled(rollout) -> list:
    return rollout.generate(PROMPTS, samples=3, decoding=DECODING, key=(0, 1, 2))


@pytest.mark.parametrize("rank", [0, 2])
def test_a_copy_stands_still_until_it_is_told_to_follow(tmp_path: Path, rank: int) -> None:
    policy = sharpen(load(tiny_folder(tmp_path / "base")))
    if rank:
        add_adapters(policy, LoraConfig(rank=rank), seed=0)
    frozen = snapshot_policy(policy, share=True)
    ahead = SnapshotRollout(LocalRollout(frozen, max_rows=64), frozen, policy)
    plain = LocalRollout(policy, max_rows=64)
    before = sampled(plain)
    assert sampled(ahead) == before
    with torch.no_grad():
        for weight in policy.model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)), alpha=0.3)
    moved = sampled(plain)
    assert moved != before
    assert sampled(ahead) == before
    assert ahead.follow(1) == {}
    assert sampled(ahead) == moved
    assert not any(weight.requires_grad for weight in frozen.model.parameters())
    own, theirs = ({w.data_ptr() for w in loaded.model.parameters()} for loaded in (frozen, policy))
    trained = {weight.data_ptr() for weight in policy.model.parameters() if weight.requires_grad}
    assert own & theirs == theirs - trained  # adapters are copied, the base below them is one
    assert bool(own & theirs) == bool(rank)


# ---------------------------------------------------------------------- which policy sampled


def test_a_step_learns_from_the_policy_of_the_step_before(runs_home: Path, tmp_path: Path) -> None:
    """The checkpoint of step 1 holds step 2's groups: sampled by the base model, with its log-probabilities."""
    run = setting(runs_home, "plain")
    assert run.train(tmp_path / "run", fault="step:2", engine=AHEAD) < 0
    held = read_state(tmp_path / "run/checkpoints" / step_folder(1)).draw.ahead
    assert held is not None
    assert [group.sampled_at for group in held.groups] == [1, 1, 1]
    base = load(runs_home / "base")
    policy = RunConfig.from_file(run.write(engine=AHEAD))
    prompts = [base.tokenizer(f"say {'abcdefg'[group.problem_index]}")["input_ids"] for group in held.groups]
    decoding = Decoding(max_tokens=policy.sampling.max_completion_tokens)
    again = LocalRollout(base, max_rows=512).generate(prompts, samples=8, decoding=decoding, key=(0, 1, 2))
    for group, prompt, expected in zip(held.groups, prompts, again, strict=True):
        assert [completion.tokens for completion in group.completions] == [completion.tokens for completion in expected]
        for completion in group.completions:
            logprobs = completion_logprobs(base.model, [prompt], [completion.tokens])
            assert torch.allclose(logprobs, torch.tensor(completion.logprobs), atol=1e-5)


@pytest.mark.parametrize(("name", "ages"), [("plain", {0, 1}), ("dynamic", {0, 1, 2})])
def test_a_step_records_how_old_its_completions_are(runs_home: Path, tmp_path: Path, name: str, ages: set[int]) -> None:
    """What a refill leaves over is two steps old by the time it is learned from."""
    out, more = tmp_path / "run", {"engine": AHEAD, "traces": {"groups_per_step": 12}}
    assert setting(runs_home, name).train(out, **more) == 0
    seen = []
    for row in rows(out / "metrics.jsonl"):
        step, metrics = row["step"], row["metrics"]
        groups = [group for group in groups_of(out) if group["step"] == step and group["discarded"] is None]
        staleness = [step - (group["sampled_at"] or step) for group in groups]
        assert metrics["sampling/staleness"] == pytest.approx(sum(staleness) / len(staleness))
        assert ("clip_ratio/low_mean" in metrics) == (step > 1)  # in the first step the ratio is 1
        assert {"sample", "reward", "update", "waiting", "total"} <= row["seconds"].keys()
        assert set(staleness) == {0} if step == 1 else 0 not in staleness
        seen += staleness
    assert set(seen) == ages


# ---------------------------------------------------------------------- stopping and failing


def test_stopped_while_waiting_the_newest_checkpoint_stands(runs_home, tmp_path, monkeypatch, whole):
    """The third step's update is done; the fourth's groups are being scored, which takes until the wish is there."""
    out, stopping, score = tmp_path / "run", threading.Event(), exact.score

    def slow(*args: Any) -> ComponentScore:
        if steps_in(out) == 2 and threading.current_thread() is not threading.main_thread():
            stopping.wait()
        return score(*args)

    def when(trainer: GrpoTrainer) -> bool:
        if steps_in(out) == 2 and trainer._training.changed_in == 3:
            stopping.set()
        return stopping.is_set()

    monkeypatch.setattr(exact, "score", slow)
    stop(runs_home, out, "ahead", when)
    monkeypatch.undo()
    assert (steps_in(out), cut_at(out)) == (2, [0, 1, 2])
    assert setting(runs_home, "ahead").train(out, "--resume") == 0
    assert result(out) == whole("ahead")


def test_stopped_before_the_update_the_step_before_is_kept_with_its_groups(runs_home, tmp_path, whole):
    """Step 3 has begun, and the groups of step 4 are being drawn, when the wish comes."""
    out, seldom = tmp_path / "run", {"checkpoints": {"every": 100}}
    stop(runs_home, out, "ahead-iterations", at_check(out, 2, 2), **seldom)
    assert (steps_in(out), cut_at(out)) == (2, [0, 2])
    held = read_state(out / "checkpoints" / step_folder(2)).draw.ahead
    assert held is not None
    assert {group.sampled_at for group in held.groups} == {2}
    assert setting(runs_home, "ahead-iterations").train(out, "--resume", **seldom) == 0
    assert result(out) == whole("ahead-iterations")


@pytest.mark.parametrize(
    ("error", "code"), [(RewardError("no"), "reward_error"), (KeyError("a slip"), "internal_error")]
)
def test_what_goes_wrong_while_drawing_ahead_ends_the_run_with_its_code(home, tmp_path, monkeypatch, error, code):
    """8 completions a step; the first of step 3 raises, while the policy learns in step 2."""
    text_of, calls, out = draw.completion_text, count(), tmp_path / "run"

    def broken(*args: Any) -> str:
        if next(calls) >= 2 * 8:
            raise error
        return text_of(*args)

    monkeypatch.setattr(draw, "completion_text", broken)
    parts = {"optim": {"steps": 5}, "engine": {"threads": 1, **AHEAD}}
    if code == "reward_error":
        assert train_here(home, out, **parts) == RewardError.exit_status
    else:
        with pytest.raises(KeyError):
            train_here(home, out, **parts)
        assert "completion_text" in (out / "log.txt").read_text()  # the trace
    end = outcome_of(out)
    assert (end["status"], end["code"], end["steps_done"]) == ("failed", code, 1)
    assert [row["step"] for row in rows(out / "metrics.jsonl")] == [1]


# ---------------------------------------------------------------------- switched at a resume


@pytest.mark.parametrize("first", [True, False])
def test_a_run_may_go_on_with_it_switched(runs_home: Path, tmp_path: Path, first: bool) -> None:
    run, out = setting(runs_home, "plain"), tmp_path / "run"
    assert run.train(out, fault="step:3", engine={"one_step_off": first}) < 0
    assert run.train(out, "--resume", engine={"one_step_off": not first}) == 0
    ages = [row["metrics"].get("sampling/staleness") for row in rows(out / "metrics.jsonl")]
    # What was drawn ahead is used; where nothing was, the next step is drawn from the newest policy.
    assert ages == ([0, 1, None, None] if first else [None, None, 0, 1])
    groups = rows(out / "samples/step-000003.jsonl")
    assert {group["sampled_at"] for group in groups} == {2 if first else None}
    (warning,) = [
        text for text in warnings_of(out) if "Cohort's" not in text
    ]  # the checkout may be worked on meanwhile
    assert f"engine.one_step_off {first}" in warning


# ---------------------------------------------------------------------- losses without a ratio, refusals


def test_reinforce_weighs_by_the_ratio_to_the_policy_that_sampled(runs_home: Path, tmp_path: Path) -> None:
    """One step old: what the correction truncates is π after one update over π before it, so it is no longer 1."""
    parts = {"algorithm": {"loss": "reinforce", "aggregation": "token_mean"}, "engine": AHEAD, "optim": {"lr": 0.01}}
    assert setting(runs_home, "plain").train(tmp_path / "run", **parts) == 0
    differences = [row["metrics"]["sampling/logp_difference/mean"] for row in rows(tmp_path / "run/metrics.jsonl")]
    assert differences[0] < 1e-5
    assert all(difference > 1e-2 for difference in differences[1:])


# ---------------------------------------------------------------------- it learns


PACES = {
    "plain": {},
    "ratio": {"engine": AHEAD},
    "weight": {"engine": AHEAD, "algorithm": {"correction": {"stale": "weight"}}},
}


@pytest.mark.slow
def test_it_learns_as_well_as_without(home, tmp_path):
    """The bandit of test_trainer, three seeds each. Weighed by the ratio, a step late is all that it costs: its reward
    is not below the plain run's one step earlier, within the 95 % interval of the mean over seeds (Student's t, 2
    degrees of freedom). PPO's ratio, which holds back a policy that moves this fast, arrives there later."""
    rewards: dict[str, list[list[float]]] = {}
    for pace, more in PACES.items():
        for seed in range(3):
            out = tmp_path / f"{pace}{seed}"
            parts = {**BANDIT, "seed": seed, "eval": {"before": False, "after": False}, **more}
            parts["optim"] = {"steps": 25, "lr": 0.01}
            parts["sampling"] = {**BANDIT["sampling"], "prompts_per_step": 8}
            parts["engine"] = {"threads": 1, **more.get("engine", {})}
            assert train_here(home, out, **parts) == 0
            rewards.setdefault(pace, []).append([metrics["reward"] for metrics in metrics_of(out)])
    late = [
        fmean(seeded[1:]) - fmean(plain[:-1]) for seeded, plain in zip(rewards["weight"], rewards["plain"], strict=True)
    ]
    assert fmean(late) + 4.303 * stdev(late) / sqrt(len(late)) > 0
    assert fmean(late) > -0.05
    for pace in PACES:
        assert all(fmean(seeded[-3:]) > 0.9 for seeded in rewards[pace])
