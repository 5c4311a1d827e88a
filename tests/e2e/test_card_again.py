"""`cohort replay` and `cohort rescore` on the card of a run that a trainer really trained: equal to the bit; what was
altered before the card was sealed is found and named; a card that was changed after that is not used."""

import base64
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cohort.cli.main import main
from cohort.evidence.canonical import canonical, sha256
from grpo_core.config.run import RunConfig
from grpo_core.files.checkpoint import file_entries, step_folder
from grpo_core.files.recorded_run import read_records
from grpo_core.records.commitments import sample_content, unpack
from grpo_core.records.leaves import leaf
from grpo_core.records.types import Group
from grpo_core.text import UNSTORABLE
from grpo_core.trainer.replay_inputs import Given, find_inputs
from tests.core.runs import flip, make_home, rows, setting
from tests.disks import small_disk
from tests.factories.small_cards import Log, Sealed, cards, data_files, key, lines, packed
from tests.processes import clean_environment

STEPS = 4


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a run of four steps in `run`, all of whose checkpoints are kept."""
    home = make_home(tmp_path_factory.mktemp("again"))
    plain = setting(home, "plain")
    assert plain.train(home / "run", traces={"groups_per_step": 3}, checkpoints={"every": 1, "keep": 9}) == 0
    return home


@pytest.fixture
def run(home: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(home / "run", tmp_path / "run"))


def problems(home: Path) -> list[dict[str, Any]]:
    given = [json.loads(line) for line in (home / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{"id": f"line-{n}", **problem, "other_answers": [], "meta": {}} for n, problem in enumerate(given, start=1)]


def traces(run: Path) -> list[dict[str, Any]]:
    """As a card has them."""
    groups = [Group.model_validate(row) for path in sorted((run / "samples").glob("*.jsonl")) for row in rows(path)]
    shown = [{"attempt": 1, **group.model_dump(mode="json", exclude={"kind"})} for group in groups]
    for sample in (sample for group in shown for sample in group["samples"]):
        sample["completion"] = UNSTORABLE.sub("\ufffd", sample["completion"])  # as a platform stores it
        if sample["tokens_sha256"] is None:
            del sample["tokens_sha256"]
    return shown


def card_of(home: Path, run: Path, folder: Path, audience: str = "authority") -> Path:
    """The card of the records in `run` as they are now."""
    config = RunConfig.from_file(run / "config.yaml")
    metrics = rows(run / "metrics.jsonl")
    committed = rows(run / "commitments.jsonl")
    checkpoints = [row for row in rows(run / "events.jsonl") if row["kind"] == "checkpoint" and not row["final"]]
    files = data_files() | {
        "config.yaml": ("downstream", config.to_yaml().encode()),
        "manifest.json": ("authority", (run / "manifest.json").read_bytes()),
        "metrics.jsonl": ("downstream", lines({"step": row["step"], "metrics": row["metrics"]} for row in metrics)),
        "problems.jsonl": ("authority", lines(problems(home))),
        "checkpoints.jsonl": (
            "downstream",
            lines({"attempt": 1, "step": row["step"], "files": row["files"]} for row in checkpoints),
        ),
        "commitments.jsonl": (
            "public",
            lines(
                {"attempt": 1, "superseded": False, **{name: row[name] for name in ("step", "count", "leaves")}}
                for row in committed
            ),
        ),
    }

    def change(document: dict[str, Any]) -> None:
        fields: dict[str, dict[str, Any]] = {"method.config": {"sha256": sha256(canonical(config.to_dict()))}}
        fields["budget.steps"] = {"done": STEPS, "planned": STEPS}
        ends = {"first": metrics[0]["metrics"]["reward"], "last": metrics[-1]["metrics"]["reward"]}
        fields["reward.course"] = {"first_step": 1, "last_step": STEPS, **ends}
        for path, value in fields.items():
            section, name = path.split(".")
            document["sections"][section][name]["value"] = value

    made = cards(Log(), Sealed(files=files, traces=traces(run), change=change), [audience])[audience]
    path = folder / f"{audience}.zip"
    path.write_bytes(packed(made))
    return path


def again(command: str, card: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit status and report; what was printed in its place where there is none."""
    known = key("first").public_key.vkey
    line = [sys.executable, "-P", "-m", "cohort.cli.main", command, str(card), "--key", known, *words, "--json"]
    done = subprocess.run(line, capture_output=True, text=True, env=clean_environment("GRPO_"), check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else {"said": done.stderr}


def with_run(home: Path, run: Path, *words: str) -> tuple[str, ...]:
    given = ("--checkpoints", str(run / "checkpoints"), "--data", str(home / "train.jsonl"), "--model")
    return (*given, str(home / "base"), *words)


def test_three_steps_that_the_reader_draws_are_equal_to_the_bit(home: Path, run: Path, tmp_path: Path) -> None:
    card = card_of(home, run, tmp_path)
    status, report = again("replay", card, *with_run(home, run, "--steps", "3", "--number", "2026"))
    assert status == 0, report
    assert (report["verdict"], report["card"]["verdict"]) == ("equal", "accepted")
    assert report["card"]["seal"] == report["name"]
    assert (report["number"], len(report["steps"]), report["unchecked"]) == (2026, 3, [])
    assert [own["step"] for own in report["compared"]] == report["steps"], "each from the checkpoint before it"
    for own in report["compared"]:
        assert (own["outcome"], own["samples"], own["committed"], own["not_kept"]) == ("equal", 24, 24, 0)
        assert {"policy", "policy-optimizer"} <= set(own["weights"])
    status, scored = again("rescore", card)
    assert (status, scored["verdict"], scored["equal"]) == (0, "equal", STEPS * 24)


def test_a_card_without_texts_still_binds_metrics_and_weights(home: Path, run: Path, tmp_path: Path) -> None:
    card = card_of(home, run, tmp_path, "downstream")
    status, report = again("replay", card, *with_run(home, run, "--step", "2"))
    (own,) = report["compared"]
    assert (status, own["outcome"], own["samples"]) == (0, "equal", 0)
    assert own["metrics"] > 30
    assert own["weights"]
    assert any("traces/" in line for line in report["withheld"])
    status, scored = again("rescore", card)
    assert status == 2
    assert "traces are in the card for authority" in scored["said"]


def test_what_an_attempt_left_that_was_given_up_is_passed_over(home: Path, run: Path, tmp_path: Path) -> None:
    """Attempt 1 of the card cut the checkpoint after step 3; one of that step by another attempt has other times."""
    folder = tmp_path / "run-7"
    for attempt in ("attempt-1", "attempt-2"):
        shutil.copytree(run, folder / attempt)
    shutil.rmtree(folder / "attempt-1" / "checkpoints" / step_folder(3))
    flip(folder / "attempt-2" / "checkpoints" / step_folder(3) / "state.json", -10)
    with zipfile.ZipFile(card_of(home, run, tmp_path)) as archive:
        archive.extractall(tmp_path / "card")
    given = Given(runs=(folder,), data=(home / "train.jsonl",), model=home / "base")
    starts = find_inputs(read_records(tmp_path / "card"), given).starts
    attempts = {step: path.parent.parent.name for step, path in starts.items()}
    assert attempts == {0: "attempt-1", 1: "attempt-1", 2: "attempt-1", 4: "attempt-1"}


def rewritten(path: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    content = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    change([line["record"] for line in content])
    path.write_text("".join(json.dumps(line) + "\n" for line in content), encoding="utf-8")


def altered_sample(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Of step 2, group 1, sample 3; the commitment is to what it became, as for a run that reported so."""
    path = run / "samples" / "step-000002.jsonl"
    rewritten(path, lambda records: change(records[1]["samples"][3]))
    group = Group.model_validate(rows(path)[1])
    sample = group.samples[3]

    def commit(records: list[dict[str, Any]]) -> None:
        leaves = unpack(records[1]["leaves"])
        leaves[8 + 3] = leaf(bytes.fromhex(sample.salt or ""), sample_content(group, sample))
        records[1]["leaves"] = base64.b64encode(b"".join(leaves)).decode()

    rewritten(run / "commitments.jsonl", commit)


def one_reward(run: Path) -> None:
    altered_sample(run, lambda sample: sample.update(reward=sample["reward"] + 0.25))


def one_sample(run: Path) -> None:
    altered_sample(run, lambda sample: sample.update(completion=sample["completion"] + "0"))


def one_weight(run: Path) -> None:
    folder = run / "checkpoints" / step_folder(2)
    tensors = load_file(folder / "policy.safetensors")
    tensors[sorted(tensors)[0]].view(torch.int32).view(-1)[0] ^= 1
    save_file(tensors, folder / "policy.safetensors")
    entry = file_entries(folder)["policy.safetensors"].model_dump()

    def change(records: list[dict[str, Any]]) -> None:
        for record in records:
            if record["kind"] == "checkpoint" and record["step"] == 2:
                record["files"]["policy.safetensors"] = entry

    rewritten(run / "events.jsonl", change)


@pytest.mark.parametrize(
    ("alter", "kind", "where"),
    [
        (one_reward, "reward", "group 1, sample 3: reward"),
        (one_sample, "sample", "group 1, sample 3: completion"),
        (one_weight, "weights", "weights after the step (policy)"),
    ],
)
def test_what_was_altered_before_the_seal_is_named(
    home: Path, run: Path, tmp_path: Path, alter: Callable[[Path], None], kind: str, where: str
) -> None:
    alter(run)
    card = card_of(home, run, tmp_path)
    status, report = again("replay", card, *with_run(home, run, "--step", "2"))
    assert status == 1, report
    assert (report["card"]["verdict"], report.get("verdict")) == ("accepted", "differs")
    (mismatch,) = [mismatch for own in report["compared"] for mismatch in own["mismatches"]]
    assert (mismatch["step"], mismatch["kind"], mismatch["where"]) == (2, kind, where)
    if alter is one_reward:
        status, scored = again("rescore", card)
        assert (status, scored["differing"]) == (1, 1)
        (mismatch,) = scored["mismatches"]
        assert (mismatch["step"], mismatch["group"], mismatch["sample"], mismatch["what"]) == (2, 1, 3, "reward")


def test_a_changed_card_is_not_used(home: Path, run: Path, tmp_path: Path) -> None:
    path = card_of(home, run, tmp_path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    for command in ("replay", "rescore"):
        status, report = again(command, path)
        assert status == 1
        assert "is not used: changed" in report["said"]
    status, report = again("replay", tmp_path / "none.zip")
    assert status == 2
    assert "cannot read" in report["said"]


@pytest.mark.parametrize("command", ["replay", "rescore"])
def test_without_room_to_unpack_a_card_it_says_where(
    home: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:  # fmt: skip
    path = card_of(home, run, tmp_path)
    with small_disk(tmp_path / "small", 20_000) as folder:
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        assert main([command, str(path), "--key", key("first").public_key.vkey]) == 2
    assert f"the disk of {folder}" in capsys.readouterr().err
