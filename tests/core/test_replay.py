"""Steps that are done again give what was recorded to the bit, from a checkpoint as from the base model; what was
altered in the records is named with its step; what does not belong to the run is refused before anything runs."""

import base64
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from grpo_core.errors import RecordsError
from grpo_core.files.checkpoint import file_entries, step_folder
from grpo_core.files.recorded_run import RecordedGroup, read_records
from grpo_core.records.commitments import sample_content, unpack
from grpo_core.records.leaves import leaf
from grpo_core.records.types import ComponentScore, Group
from grpo_core.replay.compare import ReplayedStep, compare_step
from grpo_core.replay.steps import drawn_steps, stretches
from tests.disks import small_disk
from tests.tables import cases

from .runs import ENGINES, SETTINGS, flip, forked, make_home, rows, setting, tree

QUICK = ("plain", "dynamic", "adaptive", "lora", "critic", "ahead")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("replay"))


@pytest.fixture(scope="module")
def trained(home: Path) -> Callable[[str], Path]:
    """The folder of a run of this setting, trained once."""

    def run(name: str) -> Path:
        out = home / f"run-{name}"
        if not out.exists():
            assert setting(home, name).train(out) == 0
        return out

    return run


@pytest.fixture
def copied(trained: Callable[[str], Path], tmp_path: Path) -> Path:
    """A run whose records a test may change."""
    return Path(shutil.copytree(trained("plain"), tmp_path / "run"))


def replayed(home: Path, run: Path, *words: str) -> tuple[int, str]:
    log = run.with_name(f"{run.name}.printed")
    status = forked(["replay", str(run), *words], log=log)
    return status, log.read_text(encoding="utf-8")


def report(home: Path, run: Path, *words: str) -> tuple[int, dict[str, Any]]:
    status, printed = replayed(home, run, *words, "--json")
    return status, json.loads(printed[printed.index("{\n") :])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in [*SETTINGS, *ENGINES]]
)
def test_steps_done_again_are_equal_to_the_bit(name: str, home: Path, trained: Callable[[str], Path]) -> None:
    """Step 4 from the checkpoint before it, the others from the base model, which the run's own checkpoint is not."""
    run = trained(name)
    before = tree(run)
    status, result = report(home, run, "--steps", "3", "--number", "7")
    assert (status, result["verdict"], result["environment"], result["bounds"]) == (0, "equal", [], None)
    assert len(result["steps"]) == 3
    assert {own["outcome"] for own in result["compared"]} == {"equal"}
    for own in result["compared"]:
        assert own["samples"] == own["committed"] > 0
        assert own["metrics"] > 30
        assert {"policy", "policy-optimizer"} <= set(own["weights"])
    assert tree(run) == before


def test_what_a_stranger_needs_is_problems_and_model(home: Path, copied: Path) -> None:
    shutil.rmtree(copied / "checkpoints")
    (copied / "checkpoints").mkdir()
    words = ("--data", str(home / "train.jsonl"), "--model", str(home / "base"), "--step", "2")
    status, printed = replayed(home, copied, *words)
    assert status == 0
    assert "equal to the bit: 1 step done again" in printed
    assert "from the beginning: steps 1 to 2" in printed


# ---------------------------------------------------------------------- altered records


def rewritten(path: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    change([line["record"] for line in lines])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def altered_reward(run: Path) -> str:
    """As before it was sealed: the commitment is to the altered reward."""

    def change(records: list[dict[str, Any]]) -> None:
        records[0]["samples"][1]["reward"] += 0.25

    return _altered_sample(run, change)


def altered_sample(run: Path) -> str:
    def change(records: list[dict[str, Any]]) -> None:
        records[0]["samples"][1]["completion"] += "!"

    return _altered_sample(run, change)


def _altered_sample(run: Path, change: Callable[[list[dict[str, Any]]], None]) -> str:
    path = run / f"samples/{step_folder(2)}.jsonl"
    rewritten(path, change)
    group = Group.model_validate(rows(path)[0])
    sample = group.samples[1]

    def commit(records: list[dict[str, Any]]) -> None:
        leaves = unpack(records[1]["leaves"])
        made = leaf(bytes.fromhex(sample.salt or ""), sample_content(group, sample))
        leaves[group.index * len(group.samples) + sample.index] = made
        records[1]["leaves"] = base64.b64encode(b"".join(leaves)).decode()

    rewritten(run / "commitments.jsonl", commit)
    return f"group {group.index}, sample 1"


def altered_loss(run: Path) -> str:
    def change(records: list[dict[str, Any]]) -> None:
        records[1]["metrics"]["loss"] += 1e-12

    rewritten(run / "metrics.jsonl", change)
    return "loss"


def altered_weight(run: Path) -> str:
    """One weight of the checkpoint after step 3, and every digest made right again."""
    folder = run / "checkpoints" / step_folder(3)
    path = folder / "policy.safetensors"
    tensors = load_file(path)
    name = sorted(tensors)[0]
    tensors[name].view(torch.int32).view(-1)[0] ^= 1
    save_file(tensors, path)
    entry = file_entries(folder)["policy.safetensors"].model_dump()

    def change(records: list[dict[str, Any]]) -> None:
        for record in records:
            if record["kind"] == "checkpoint" and record["step"] == 3 and not record["final"]:
                record["files"]["policy.safetensors"] = entry

    rewritten(run / "events.jsonl", change)
    return "policy"


@pytest.mark.parametrize(
    ("alter", "step", "kind"),
    [
        (altered_reward, 2, "reward"),
        (altered_sample, 2, "sample"),
        (altered_loss, 2, "metric"),
        (altered_weight, 3, "weights"),
    ],
)
def test_what_was_altered_is_named(
    alter: Callable[[Path], str], step: int, kind: str, home: Path, copied: Path
) -> None:
    where = alter(copied)
    status, result = report(home, copied, "--step", str(step), "--from-start")
    assert (status, result["verdict"]) == (1, "differs")
    (mismatch,) = [mismatch for own in result["compared"] for mismatch in own["mismatches"]]
    assert (mismatch["step"], mismatch["kind"]) == (step, kind)
    assert where in mismatch["where"]
    status, printed = replayed(home, copied, "--step", str(step), "--from-start")
    first = next(line for line in printed.splitlines() if line.startswith("differs"))
    assert first.startswith(f"differs: step {step}, ")
    assert where in first


@pytest.mark.parametrize("when", ["now", "in the run"])
def test_a_judge_that_does_not_answer_is_no_difference(trained: Callable[[str], Path], when: str) -> None:
    run = read_records(trained("plain"))
    kept = list(run.groups({2}))
    whole = [own.group for own in kept]
    unscored = ComponentScore(value=None, error="the judge cannot be reached", error_class="infra")
    sample = whole[1].samples[3].model_copy(update={"reward": None, "components": {"taste": unscored}})
    samples = [sample if own.index == sample.index else own for own in whole[1].samples]
    failed = [whole[0], whole[1].model_copy(update={"samples": samples})]
    now, then = (failed, whole) if when == "now" else (whole, failed)
    again = ReplayedStep(2, run.steps[2], now, {})
    recorded = [RecordedGroup(group, 0) for group in then]
    place = f"step 2, group {whole[1].index}, sample 3: reward component taste could not be scored {when}"
    with pytest.raises(RecordsError, match=place):
        compare_step(run, recorded, again, bounds=None, wanted=True)


# ---------------------------------------------------------------------- refusals


def foreign_problems(home: Path, run: Path) -> tuple[str, ...]:
    path = run / "others.jsonl"
    path.write_text((home / "train.jsonl").read_text() + '{"prompt": "say z", "answer": "1"}\n')
    return ("--data", str(path))


def foreign_model(home: Path, run: Path) -> tuple[str, ...]:
    model = Path(shutil.copytree(home / "base", run / "model"))
    flip(model / "model.safetensors", -1)
    return ("--model", str(model))


def foreign_checkpoint(home: Path, run: Path) -> tuple[str, ...]:
    flip(run / "checkpoints" / step_folder(3) / "policy-optimizer.safetensors", -1)
    return ()


def no_such_step(home: Path, run: Path) -> tuple[str, ...]:
    return ("--step", "9")


def number_and_step(home: Path, run: Path) -> tuple[str, ...]:
    return ("--step", "1", "--number", "3")


def too_many(home: Path, run: Path) -> tuple[str, ...]:
    return ("--steps", "5")


def no_records(home: Path, run: Path) -> tuple[str, ...]:
    (run / "manifest.json").unlink()
    return ()


def broken_line(home: Path, run: Path) -> tuple[str, ...]:
    (run / "metrics.jsonl").write_text("not json\n")
    return ()


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        (foreign_problems, "others.jsonl is not the file that the run was trained on"),
        (foreign_model, "model.safetensors of the model in"),
        (foreign_checkpoint, "policy-optimizer.safetensors is not the file of the run's checkpoint after step 3"),
        (no_such_step, "step 9 is not in the records, which hold steps 1 to 4"),
        (number_and_step, "--number draws steps"),
        (too_many, "5 steps were asked for, and the records hold 4"),
        (no_records, "holds neither a run"),
        (broken_line, "metrics.jsonl, line 1 is no record"),
    ],
)
def test_refused_before_anything_runs(
    refused: Callable[[Path, Path], tuple[str, ...]], says: str, home: Path, copied: Path
) -> None:
    words = refused(home, copied)
    status, printed = replayed(home, copied, *words)
    assert status == 2
    assert says in printed
    assert "Traceback" not in printed
    assert "step 1/" not in printed


def test_without_room_for_the_hashed_weights_it_says_where(
    home: Path, trained: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not with the exit status of a difference."""
    with small_disk(tmp_path / "small", 60_000) as folder:
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        status, printed = replayed(home, trained("plain"), "--step", "2")
    assert status == 2
    assert f"the disk of {folder}" in printed
    assert "Traceback" not in printed


# ---------------------------------------------------------------------- which steps


@pytest.mark.parametrize(
    ("wanted", "starts", "expected"), cases("trainer/replay_stretches", "wanted", "starts", "stretches")
)
def test_where_steps_begin(wanted: list[int], starts: list[int], expected: list[list[Any]]) -> None:
    assert [[own.start, list(own.wanted), own.cost] for own in stretches(wanted, starts)] == expected


def test_a_number_draws_the_same_steps_everywhere() -> None:
    """By `printf 'cohort-replay/1\nab\n2026\n0' | sha256sum` and so on: 87 of 120, then 45 and 107 of those left."""
    assert drawn_steps(range(1, 121), 3, name="ab", number=2026) == [45, 87, 107]
    assert drawn_steps([5, 9], 2, name="x", number=1) == [5, 9]
    with pytest.raises(RecordsError, match="the records hold 2"):
        drawn_steps([5, 9], 3, name="x", number=1)
    counts = [sum(step in drawn_steps(range(10), 3, name="x", number=n) for n in range(1000)) for step in range(10)]
    assert all(240 < count < 360 for count in counts)  # 300 expected, 14.5 the standard deviation
