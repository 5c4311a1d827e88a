"""Evaluations while training: they change nothing of the training, survive a kill, decide the best checkpoint, and may
end the run early. docs/evaluation.md, docs/checkpoints.md."""

import io
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_core.config.run import RunConfig
from grpo_core.distributed.ranks import Ranks
from grpo_core.evaluate.text_report import interval
from grpo_core.files.checkpoint import step_folder
from grpo_core.records.types import EvalItem, EvalResult
from grpo_core.runtime.progress import Progress
from grpo_core.trainer import evaluator as evaluators
from grpo_core.trainer.checkpoints.state import Best, Evaluated
from grpo_core.trainer.evaluation import Evaluation
from grpo_core.trainer.evaluator import Evaluator
from grpo_core.trainer.metrics import Counts
from grpo_core.trainer.recorder import RunRecorder

from .runs import (
    ENGINES,
    KILLED,
    names_of_steps,
    outcome_of,
    result,
    rows,
    setting,
    state_of,
)
from .tiny import config as tiny_config

SUITE = {"path": "builtin:performance", "limit": 6, "max_completion_tokens": 4}
EVERY: dict[str, object] = {"eval": {"every": 1, "during": ["heldout", "performance"], "suites": [SUITE]}}
slow = pytest.mark.slow


def without_evaluations(row: dict[str, Any]) -> dict[str, object]:
    return {**row, "metrics": {name: value for name, value in row["metrics"].items() if name.split("/")[0] != "eval"}}


@pytest.mark.parametrize("name", ["plain", "ahead", *[pytest.param(each, marks=slow) for each in ("lora", *ENGINES)]])
def test_training_is_the_same_to_the_bit_with_and_without(runs_home: Path, tmp_path: Path, whole, name: str) -> None:
    out = tmp_path / "run"
    assert setting(runs_home, name).train(out, **EVERY) == 0
    evaluated, plain = result(out), whole(name)
    assert all("eval/heldout/score" in row["metrics"] for row in evaluated.metrics)
    assert evaluated.weights == plain.weights
    assert [without_evaluations(row) for row in evaluated.metrics] == plain.metrics
    assert (evaluated.samples, evaluated.totals) == (plain.samples, plain.totals)


def test_what_is_recorded(runs_home: Path, tmp_path: Path) -> None:
    """After the step's update; without texts; the last step's answers are the evaluation after training."""
    out = tmp_path / "run"
    assert setting(runs_home, "plain").train(out, eval={**EVERY["eval"], "every": 2}) == 0
    recorded = rows(out / "evals/during.jsonl")
    results = [row for row in recorded if row["kind"] == "eval_result"]
    assert [(row["step"], row["suite"]) for row in results] == [
        (step, suite) for step in (2, 4) for suite in ("heldout", "performance")
    ]
    items = [row for row in recorded if row["kind"] == "eval_item"]
    assert {(row["prompt"], row["answer"], row["completion"], row["detail"]) for row in items} == {("", "", "", "")}
    for step in (2, 4):
        own = [row for row in items if (row["step"], row["suite"]) == (step, "performance")]
        of_suite = [EvalItem.model_validate(row) for row in own]
        metrics = rows(out / "metrics.jsonl")[step - 1]["metrics"]
        around = interval(of_suite)
        assert (metrics["eval/performance/low"], metrics["eval/performance/high"]) == (around.low, around.high)
        assert metrics["eval/performance/score"] == sum(item.score for item in of_suite) / 6
    assert not any(name.startswith("eval/") for name in rows(out / "metrics.jsonl")[0]["metrics"])
    after = rows(out / "evals/after.jsonl")
    assert [row["score"] for row in after if row["kind"] == "eval_item"] == [
        row["score"] for row in items if row["step"] == 4
    ]
    assert all(row["prompt"] for row in after if row["kind"] == "eval_item")
    assert {row["step"] for row in after} == {4}


@pytest.mark.parametrize("point", ["evaluated:2", "recorded:3", pytest.param("updated:4", marks=slow)])
def test_a_run_that_was_killed_evaluates_the_same_steps(runs_home: Path, tmp_path: Path, point: str) -> None:
    run, more = setting(runs_home, "plain"), {**EVERY, "checkpoints": {"every": 3}}
    assert run.train(tmp_path / "whole", **more) == 0
    assert run.train(tmp_path / "run", fault=point, **more) == KILLED
    assert run.train(tmp_path / "run", "--resume", **more) == 0
    assert result(tmp_path / "run") == result(tmp_path / "whole")
    bests = [state_of(tmp_path / out / "checkpoints" / step_folder(4))["best"] for out in ("run", "whole")]
    assert bests[0] == bests[1]


def test_by_the_clock_the_weights_are_the_same(runs_home: Path, tmp_path: Path, whole) -> None:
    """With the whole of the run's time as its share every step is evaluated, killed and resumed or not."""
    run, out, more = setting(runs_home, "plain"), tmp_path / "run", {"eval": {"cost": 1}}
    assert run.train(out, fault="updated:3", **more) == KILLED
    assert run.train(out, "--resume", **more) == 0
    evaluated, plain = result(out), whole("plain")
    assert any("eval/heldout/score" in row["metrics"] for row in evaluated.metrics)
    assert evaluated.weights == plain.weights
    assert [without_evaluations(row) for row in evaluated.metrics] == plain.metrics


# ---------------------------------------------------------------------- by scores that are made by hand


class Kept:
    """Checkpoints as the manager keeps them, without files."""

    def __init__(self, higher_is: str = "better") -> None:
        self.evaluated, self.best, self.sign = Evaluated(), None, -1 if higher_is == "worse" else 1

    def evaluate(self, step: int, score: float) -> bool:
        if self.best is not None and self.sign * (score - self.best.value) <= 0:
            return False
        self.best = Best(step=step, by="heldout", value=score)
        return True


def evaluator(config: RunConfig, kept: Any) -> Evaluator:
    progress = Progress(out=io.StringIO())
    counts = Counts()
    return Evaluator(
        config,
        [],
        rollout=None,
        policy=None,  # type: ignore[arg-type]
        training=None,  # type: ignore[arg-type]
        checkpoints=kept,
        counts=counts,
        steps=config.steps,
        recorder=RunRecorder(None, progress, counts),
        ranks=Ranks(),
        check=lambda: None,
        stop_if_asked=lambda: None,
    )


def patient(**own: object) -> RunConfig:
    return tiny_config(eval={"holdout": 2, "every": 1, "patience": 2, **own}, optim={"steps": 9})


@pytest.mark.parametrize(
    ("own", "scores", "ends_after"),
    [
        ({}, [0.2, 0.3, 0.3, 0.3], 3),
        ({}, [0.2, 0.1, 0.3, 0.2, 0.2], 4),
        ({"min_delta": 0.15}, [0.2, 0.3, 0.34, 0.9], 2),  # better, but by less than counts
        ({"min_delta": 0.15}, [0.2, 0.3, 0.4, 0.5], None),  # the third is by more than the first's 0.15
        ({"patience": 5}, [0.2, 0.1, 0.1, 0.1], None),
    ],
)
def test_patience_counts_evaluations_that_were_not_better(own, scores, ends_after) -> None:
    """The first score is the evaluation before training."""
    judge = evaluator(patient(**own), Kept())
    ended = None
    for step, score in enumerate(scores):
        judge._compare(step, score)
        if judge.exhausted and ended is None:
            ended = step
    assert ended == ends_after


def test_the_budget_holds_what_is_spent_and_what_is_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    judge = evaluator(tiny_config(eval={"holdout": 2, "cost": 0.05, "after": True}, optim={"steps": 9}), kept)
    elapsed = SimpleNamespace(seconds=lambda: now)
    judge.counts = elapsed  # type: ignore[assignment]
    now = 0.0
    assert judge._due(1), "nothing is measured yet"
    kept.evaluated = Evaluated(seconds=10.0, newest=5.0)
    now = 299.0
    assert not judge._due(2)
    now = 300.0
    assert judge._due(2)
    now = 1.0
    assert judge._due(9), "after the last step, in place of the evaluation after training"


# ---------------------------------------------------------------------- what follows from them


class Scripted:
    """Evaluations whose scores are given; everything else of the run is real."""

    def __init__(self, scores: Sequence[float]) -> None:
        self.scores = scores

    def __call__(self, phase: str, tasks: Sequence[Any], *, step: int = 0, ready: Any = (), **_: Any) -> Any:
        for task in tasks:
            problems, score = len(task.prompts.prompts), self.scores[step]
            items = tuple(
                EvalItem(
                    phase=phase, step=step, suite=task.name, problem_id=str(index), prompt="p", answer="a",
                    completion="c", score=score, truncated=False, tokens=1,
                )
                for index in range(problems)
            )  # fmt: skip
            outcome = EvalResult(
                phase=phase, step=step, suite=task.name, problems=problems, correct=problems * score, truncated=0,
                errors=0, mean_tokens=1, seconds=0.1, protocol=task.protocol,
            )  # fmt: skip
            yield Evaluation(items, outcome)


def scripted(monkeypatch: pytest.MonkeyPatch, scores: Sequence[float]) -> None:
    """For the forked child."""
    monkeypatch.setattr(evaluators, "evaluate_all", Scripted(scores))


def test_the_best_is_by_held_out_whatever_the_training_reward(runs_home, tmp_path, monkeypatch) -> None:
    """The held-out score is highest after step 3 and falls from then on; the newest checkpoints alone would have lost
    it."""
    out = tmp_path / "run"
    scripted(monkeypatch, [0.2, 0.4, 0.5, 0.9, *[0.1] * 3])
    more = {"eval": {"every": 1}, "optim": {"steps": 6}, "checkpoints": {"every": 6, "keep": 1}}
    assert setting(runs_home, "plain").train(out, **more) == 0
    assert names_of_steps(out) == [step_folder(3), step_folder(6)]
    cut = [row for row in rows(out / "events.jsonl") if row["kind"] == "checkpoint" and not row["final"]]
    assert [(row["step"], row["best"]) for row in cut] == [(0, True), (1, True), (2, True), (3, True), (6, False)]
    best = state_of(out / "checkpoints" / step_folder(6))["best"]
    assert (best["step"], best["by"], round(best["value"], 9)) == (3, "heldout", 0.9)


def test_the_weights_from_before_training_are_the_best_of_a_run_that_did_harm(runs_home, tmp_path, monkeypatch):
    out = tmp_path / "run"
    scripted(monkeypatch, [1.0, 0.3, 0.2, 0.1, 0.0])
    assert setting(runs_home, "plain").train(out, eval={"every": 1}) == 0
    assert names_of_steps(out) == [step_folder(0), step_folder(3), step_folder(4)]


def test_early_stopping_ends_the_run_well(runs_home, tmp_path, monkeypatch) -> None:
    """Also one that dies right after the evaluation that ends it; and a longer run has its patience again."""
    run, out = setting(runs_home, "plain"), tmp_path / "run"
    scripted(monkeypatch, [0.2, 0.4, 0.3, 0.3, 0.3, 0.6, 0.6])
    more = {"eval": {"every": 1, "patience": 2}, "checkpoints": {"every": 100}}
    assert run.train(out, fault="checkpoint:recorded@3", **more) == KILLED
    assert run.train(out, "--resume", **more) == 0
    outcome = outcome_of(out)
    assert (outcome["status"], outcome["code"], outcome["steps_done"]) == ("finished", "early_stop", 3)
    for part in ("eval.patience", "40 % after step 1", "3 of 4 steps"):
        assert part in outcome["message"]
    assert names_of_steps(out) == [step_folder(step) for step in (0, 1, 3)], "it died before it removed the first"
    assert (out / "checkpoints/final").is_dir()
    assert rows(out / "evals/after.jsonl")[-1]["step"] == 3
    assert run.train(out, "--resume", **more) != 0, "it has ended"
    assert run.train(out, "--resume", **{**more, "optim": {"steps": 6}}) == 0
    assert (outcome_of(out)["code"], outcome_of(out)["steps_done"]) == ("ok", 6)


# ---------------------------------------------------------------------- a verifier of their own


def test_held_out_problems_have_a_verifier_of_their_own(runs_home: Path, tmp_path: Path) -> None:
    """It takes any number, so everything is right; the training reward is as it was."""
    out = tmp_path / "run"
    judge = {"components": [{"name": "number", "kind": "regex", "params": {"pattern": r"[\s\S]*"}}]}
    assert setting(runs_home, "plain").train(out, eval={"reward": judge, "every": 4}) == 0
    own = RunConfig.from_file(out / "config.yaml")
    for phase in ("before", "after"):
        measured = rows(out / "evals" / f"{phase}.jsonl")[-1]
        assert measured["correct"] == measured["problems"]
        assert measured["protocol"]["success"] == "number"
    assert own.reward.success_component != "number"
    assert {
        name
        for name in rows(out / "metrics.jsonl")[0]["metrics"]
        if name.startswith("rewards/") and name.endswith("/mean")
    } == {
        "rewards/answer/mean",
        "rewards/near/mean",
    }
