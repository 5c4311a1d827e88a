"""When a checkpoint is cut, which ones stay, what a wish to stop leaves behind, and making a model folder of one."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from grpo_core.checkpoint_files import pruning
from grpo_core.cli import main
from grpo_core.config import RunConfig
from grpo_core.errors import Interrupted, ModelError
from grpo_core.progress import Progress
from grpo_core.run_dir import RunDir
from grpo_core.trainer import Trainer

from .runs import KILLED, Result, names_of_steps, result, rows, setting
from .tiny import load


def checkpoints(out: Path) -> list[dict[str, object]]:
    return [row for row in rows(out / "events.jsonl") if row["kind"] == "checkpoint" and not row["final"]]


def cut_at(out: Path) -> list[object]:
    return [row["step"] for row in checkpoints(out)]


# ---------------------------------------------------------------------- when, and which stay


def test_every_so_many_steps_and_after_the_last(runs_home: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert setting(runs_home, "plain").train(out, optim={"steps": 5}, checkpoints={"every": 2}) == 0
    assert cut_at(out) == [0, 2, 4, 5]
    assert names_of_steps(out) == ["step-000004", "step-000005"]
    removed = [row["step"] for row in rows(out / "events.jsonl") if row["kind"] == "checkpoint_removed"]
    assert removed == [0, 2]
    assert all(row["seconds"] > 0 for row in checkpoints(out))


def test_as_often_as_the_cost_allows(runs_home: Path, tmp_path: Path) -> None:
    """After the first step in any case, to learn what one costs; then never, at a cost that none can meet."""
    out = tmp_path / "run"
    assert setting(runs_home, "plain").train(out, optim={"steps": 5}, checkpoints={"every": None, "cost": 1e-9}) == 0
    assert cut_at(out) == [0, 1, 5]


def test_the_best_and_the_pinned_stay(runs_home: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    (out / "checkpoints").mkdir(parents=True)
    (out / "checkpoints/pinned.json").write_text("[3, 77]")
    assert setting(runs_home, "plain").train(out, optim={"steps": 14}) == 0
    rewards = [row["metrics"]["reward"] for row in rows(out / "metrics.jsonl")]
    means = {step: sum(rewards[step - 10 : step]) / 10 for step in range(10, 15)}
    best = [step for step in means if all(means[step] > means[before] for before in range(10, step))]
    assert best[0] == 10
    assert [row["step"] for row in checkpoints(out) if row["best"]] == best
    assert names_of_steps(out) == [f"step-{step:06d}" for step in sorted({3, best[-1], 13, 14})]


def test_pins_that_cannot_be_read_keep_everything(runs_home: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    (out / "checkpoints").mkdir(parents=True)
    (out / "checkpoints/pinned.json").write_text('{"3": true}')
    status, said = setting(runs_home, "plain").told(out)
    assert status == 0
    assert len(names_of_steps(out)) == 5
    assert "no checkpoint was removed" in said


def test_nothing_is_removed_while_it_is_being_said_which_stay(runs_home: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    (out / "checkpoints").mkdir(parents=True)
    with pruning(out / "checkpoints") as mine:
        assert mine
        assert setting(runs_home, "plain").train(out) == 0
        assert len(names_of_steps(out)) == 5


# ---------------------------------------------------------------------- asked to stop


def stop(home: Path, out: Path, name: str, when: Callable[[Trainer], bool], **more: object) -> RunConfig:
    """Train in this process and ask to stop at the first check at which `when` is true; returns the config."""
    path = setting(home, name).write(**more)
    config = RunConfig.from_file(path)
    trainers: list[Trainer] = []

    def check() -> None:
        if when(trainers[0]):
            raise Interrupted("asked to stop by a test")

    with (out.parent / "printed").open("w") as printed:
        run_dir = RunDir.create(out)
        trainers.append(Trainer(config, run_dir, base=home, progress=Progress(out=printed), check=check))
        with pytest.raises(Interrupted):
            trainers[0].run()
    outcome = json.loads((out / "outcome.json").read_text())
    assert (outcome["status"], outcome["code"]) == ("stopped", "interrupted")
    return config


def steps_in(out: Path) -> int:
    path = out / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def resumed(home: Path, out: Path, name: str, **more: object) -> Result:
    assert setting(home, name).train(out, "--resume", **more) == 0
    return result(out)


SELDOM: dict[str, object] = {"checkpoints": {"every": 100}}


@pytest.mark.parametrize("name", ["plain", "dynamic"])
def test_stopped_while_sampling_the_step_before_is_kept(
    runs_home: Path, tmp_path: Path, whole: Callable[[str], Result], name: str
) -> None:
    """The newest checkpoint is three steps old, and the problems of the step in hand are drawn already."""
    out = tmp_path / "run"
    asked: list[int] = []

    def when(trainer: Trainer) -> bool:
        if steps_in(out) == 3:
            asked.append(1)
        return len(asked) > 5  # between steps, then some tokens of the fourth

    stop(runs_home, out, name, when, **SELDOM)
    assert (steps_in(out), cut_at(out)) == (3, [0, 3])
    assert resumed(runs_home, out, name, **SELDOM) == whole(name)


def in_update(out: Path) -> Callable[[Trainer], bool]:
    """Inside an update of the third step, after its first change to the weights."""
    return lambda trainer: steps_in(out) >= 2 and trainer._training.changed_in == 3


def test_stopped_in_an_update_the_step_is_finished_and_kept(
    runs_home: Path, tmp_path: Path, whole: Callable[[str], Result]
) -> None:
    out = tmp_path / "run"
    stop(runs_home, out, "iterations", in_update(out), **SELDOM)
    assert (steps_in(out), cut_at(out)) == (3, [0, 3])
    assert resumed(runs_home, out, "iterations", **SELDOM) == whole("iterations")


def test_stopped_in_an_update_at_once_where_the_step_before_is_kept(
    runs_home: Path, tmp_path: Path, whole: Callable[[str], Result]
) -> None:
    out = tmp_path / "run"
    stop(runs_home, out, "iterations", in_update(out))
    assert (steps_in(out), cut_at(out)) == (2, [0, 1, 2])
    assert resumed(runs_home, out, "iterations") == whole("iterations")


# ---------------------------------------------------------------------- a model folder of a checkpoint


@pytest.mark.parametrize("name", ["plain", "lora", "iterations"])
def test_exporting_the_last_checkpoint_gives_the_final_weights(runs_home: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "run"
    assert setting(runs_home, name).train(out) == 0
    assert main(["export", str(out / "checkpoints/step-000004"), "--out", str(tmp_path / "made")]) == 0
    made, wanted = (load(folder, dtype="float32") for folder in (tmp_path / "made", out / "checkpoints/final"))
    ours, theirs = made.model.state_dict(), wanted.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "made").num_parameters() == made.parameters()


def test_exporting_what_cannot_be_exported(
    runs_home: Path, stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert setting(runs_home, "plain").train(out) == 0
    assert main(["export", str(out / "checkpoints/final"), "--out", str(tmp_path / "made")]) == 7
    assert "is a model folder already" in capsys.readouterr().err
    checkpoint = str(stopped / "checkpoints/step-000003")
    assert main(["export", checkpoint, "--out", str(tmp_path)]) == 7
    assert "is there already" in capsys.readouterr().err
    given = ["--model", str(out / "checkpoints/final"), "--out", str(tmp_path / "made")]
    assert main(["export", checkpoint, *given]) == 4
    assert "the base model's weights are not those that the run started from" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()
    with pytest.raises(ModelError, match=r"grpo export .*/step-000003 --out DIR"):
        load(Path(checkpoint))


def test_killed_while_the_final_weights_are_written(
    runs_home: Path, tmp_path: Path, whole: Callable[[str], Result]
) -> None:
    """The sixth folder that is written is the final one; nothing is trained again."""
    out = tmp_path / "run"
    assert setting(runs_home, "plain").train(out, fault="checkpoint:synced@6") == KILLED
    assert not (out / "checkpoints/final").exists()
    assert resumed(runs_home, out, "plain") == whole("plain")
    (again,) = [row for row in rows(out / "events.jsonl") if row["kind"] == "resumed"]
    assert again["step"] == 4
