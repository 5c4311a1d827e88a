"""When a checkpoint is cut, which ones stay, what a wish to stop leaves behind, and making a model folder of one."""

from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from grpo_core.cli.main import main
from grpo_core.config.run import RunConfig
from grpo_core.errors import CheckpointError, Interrupted, ModelError
from grpo_core.files.checkpoint import pruning
from grpo_core.files.run_folder import RunDir
from grpo_core.runtime.progress import Progress
from grpo_core.trainer.grpo import GrpoTrainer

from .runs import KILLED, Result, names_of_steps, outcome_of, result, rows, setting
from .tiny import load

SELDOM: dict[str, object] = {"checkpoints": {"every": 100}}


def checkpoints(out: Path) -> list[dict[str, object]]:
    return [row for row in rows(out / "events.jsonl") if row["kind"] == "checkpoint" and not row["final"]]


def cut_at(out: Path) -> list[object]:
    return [row["step"] for row in checkpoints(out)]


def pinned(out: Path, text: str) -> Path:
    (out / "checkpoints").mkdir(parents=True)
    (out / "checkpoints/pinned.json").write_text(text)
    return out


# ---------------------------------------------------------------------- when, and which stay


@pytest.mark.parametrize(
    ("when", "cut", "kept"),
    [
        ({"every": 2}, [0, 2, 4, 5], [4, 5]),
        # After the first step in any case, to learn what one costs; then never, at a cost that none can meet.
        ({"every": None, "cost": 1e-9}, [0, 1, 5], [1, 5]),
    ],
)
def test_cut_every_so_many_steps_or_as_often_as_the_cost_allows(runs_home, tmp_path, when, cut, kept):
    out = tmp_path / "run"
    assert setting(runs_home, "plain").train(out, optim={"steps": 5}, checkpoints=when) == 0
    assert cut_at(out) == cut
    assert names_of_steps(out) == [f"step-{step:06d}" for step in kept]
    removed = [row["step"] for row in rows(out / "events.jsonl") if row["kind"] == "checkpoint_removed"]
    assert removed == [step for step in cut if step not in kept]
    assert all(row["seconds"] > 0 for row in checkpoints(out))


def test_the_best_and_the_pinned_stay(runs_home: Path, tmp_path: Path) -> None:
    out = pinned(tmp_path / "run", "[3, 77]")
    assert setting(runs_home, "plain").train(out, optim={"steps": 14}) == 0
    rewards = [row["metrics"]["reward"] for row in rows(out / "metrics.jsonl")]
    means = {step: sum(rewards[step - 10 : step]) / 10 for step in range(10, 15)}
    best = [step for step in means if all(means[step] > means[before] for before in range(10, step))]
    assert best[0] == 10
    assert [row["step"] for row in checkpoints(out) if row["best"]] == best
    assert names_of_steps(out) == [f"step-{step:06d}" for step in sorted({3, best[-1], 13, 14})]


@pytest.mark.parametrize(("pins", "held"), [('{"3": true}', nullcontext), ("[]", pruning)])
def test_nothing_is_removed_by_pins_that_cannot_be_read_or_while_somebody_decides(runs_home, tmp_path, pins, held):
    out = pinned(tmp_path / "run", pins)
    with held(out / "checkpoints"):
        assert setting(runs_home, "plain").train(out) == 0
    assert len(names_of_steps(out)) == 5


# ---------------------------------------------------------------------- a wish to stop


def stop(home: Path, out: Path, name: str, when: Callable[[GrpoTrainer], bool], **more: object) -> None:
    """Train in this process and ask to stop at the first check at which `when` is true."""
    config = RunConfig.from_file(setting(home, name).write(**more))
    trainers: list[GrpoTrainer] = []

    def check() -> None:
        if when(trainers[0]):
            raise Interrupted("asked to stop by a test")

    with (out.parent / "printed").open("w") as printed:
        run_dir = RunDir.create(out)
        trainers.append(GrpoTrainer(config, run_dir, base=home, progress=Progress(out=printed), check=check))
        with pytest.raises(Interrupted):
            trainers[0].run()
    run_dir.close()
    assert (outcome_of(out)["status"], outcome_of(out)["code"]) == ("stopped", "interrupted")


def steps_in(out: Path) -> int:
    path = out / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def resumed(home: Path, out: Path, name: str, **more: object) -> Result:
    assert setting(home, name).train(out, "--resume", **more) == 0
    return result(out)


def at_check(out: Path, step: int, number: int) -> Callable[[GrpoTrainer], bool]:
    """Of the checks after this step: the first is between steps, others are within the next."""
    checks = count(1)
    return lambda trainer: steps_in(out) == step and next(checks) >= number


@pytest.mark.parametrize("name", ["plain", "dynamic"])
def test_stopped_while_sampling_the_step_before_is_kept(runs_home: Path, tmp_path: Path, whole, name: str) -> None:
    """The newest checkpoint is three steps old, and the problems of the step in hand are drawn already."""
    out = tmp_path / "run"
    stop(runs_home, out, name, at_check(out, 3, 6), **SELDOM)
    assert (steps_in(out), cut_at(out)) == (3, [0, 3])
    assert resumed(runs_home, out, name, **SELDOM) == whole(name)


@pytest.mark.parametrize(
    ("name", "more", "steps", "cut"),
    [
        ("iterations", SELDOM, 3, [0, 3]),  # the step before is not kept: this one is finished
        ("iterations", {}, 2, [0, 1, 2]),  # it is: this one ends at once
        ("ahead-iterations", SELDOM, 3, [0, 3]),
    ],
)
def test_stopped_in_an_update(runs_home, tmp_path, whole, name, more, steps, cut):
    out = tmp_path / "run"
    # Inside an update of the third step, after its first change to the weights.
    stop(runs_home, out, name, lambda trainer: steps_in(out) >= 2 and trainer._training.changed_in == 3, **more)
    assert (steps_in(out), cut_at(out)) == (steps, cut)
    assert resumed(runs_home, out, name, **more) == whole(name)


def test_killed_while_the_final_weights_are_written(runs_home: Path, tmp_path: Path, whole) -> None:
    """The sixth folder that is written is the final one; nothing is trained again."""
    out = tmp_path / "run"
    assert setting(runs_home, "plain").train(out, fault="checkpoint:synced@6") == KILLED
    assert not (out / "checkpoints/final").exists()
    assert resumed(runs_home, out, "plain") == whole("plain")
    (again,) = [row for row in rows(out / "events.jsonl") if row["kind"] == "resumed"]
    assert again["step"] == 4


# ---------------------------------------------------------------------- a model folder of a checkpoint


@pytest.mark.parametrize("name", ["plain", "lora", "iterations"])
def test_exporting_the_last_checkpoint_gives_the_final_weights(finished, tmp_path: Path, name: str) -> None:
    checkpoints = finished(name) / "checkpoints"
    assert main(["export", str(checkpoints / "step-000004"), "--out", str(tmp_path / "made")]) == 0
    made, wanted = (load(folder, dtype="float32") for folder in (tmp_path / "made", checkpoints / "final"))
    ours, theirs = made.model.state_dict(), wanted.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "made").num_parameters() == made.parameters()


def test_what_cannot_be_exported(finished, stopped: Path, tmp_path: Path) -> None:
    made, final, checkpoint = (
        tmp_path / "made",
        finished("plain") / "checkpoints/final",
        stopped / "checkpoints/step-000003",
    )
    for source, target, more, status in (
        (final, made, [], CheckpointError.exit_status),  # a model folder already
        (checkpoint, tmp_path, [], CheckpointError.exit_status),  # is there already
        (checkpoint, made, ["--model", str(final)], ModelError.exit_status),  # not what the run started from
    ):
        assert main(["export", str(source), "--out", str(target), *more]) == status
    assert not made.exists()
