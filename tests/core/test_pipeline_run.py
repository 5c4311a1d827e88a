"""`grpo pipeline run` on tiny models: stages in order, resumed after a kill at any point to the bit, done once, and out
of date when what they were made with changes."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_core.config.yaml_text import dump_yaml
from grpo_core.pipeline.config import PipelineConfig
from grpo_core.pipeline.folder import PipelineFolder
from grpo_core.pipeline.outputs import output_of, weights_digest
from grpo_core.records.types import FileEntry
from tests.processes import clean_environment, wait_for
from tests.tables import FOLDER

from .runs import PLAIN, merged, result

STAGE = merged(
    PLAIN, {"data": {"path": "train.jsonl"}, "engine": {"threads": 1}, "optim": {"steps": 2}, "eval": {"cost": 0}}
)


def write(home: Path, **changes: dict[str, Any]) -> Path:
    """A pipeline of two stages of GRPO, the second of which begins with the weights of the first."""
    stages: dict[str, Any] = {"first": STAGE, "second": merged(STAGE, {"seed": 1, "optim": {"steps": 3}})}
    stages["second"] = {**stages["second"], "model": {"stage": "first"}}
    stages = {name: merged(stage, changes.get(name, {})) for name, stage in stages.items()}
    path = home / "pipeline.yaml"
    path.write_text(dump_yaml({"name": "two", "stages": stages}))
    return path


class Command:
    """`grpo pipeline …` in a process of its own; what it prints goes to a file."""

    def __init__(self, printed: Path, *words: str, fault: str = "") -> None:
        self._printed = printed
        with printed.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "grpo_core.cli.main", "pipeline", *words],
                env={**clean_environment("GRPO_"), "OMP_NUM_THREADS": "1", "GRPO_FAULT": fault},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def printed(self) -> str:
        return self._printed.read_text(encoding="utf-8")

    def ended(self) -> int:
        return self.process.wait()


def run(file: Path, out: Path, *words: str, fault: str = "") -> tuple[int, str]:
    command = Command(out.with_name(f"{out.name}.printed"), "run", str(file), "--out", str(out), *words, fault=fault)
    return command.ended(), command.printed


def results(out: Path) -> list[Any]:
    return [result(out / slug / "run") for slug in ("first", "second")]


def states(file: Path, out: Path) -> list[str]:
    statuses = PipelineFolder(out).status(PipelineConfig.from_file(file))
    return [statuses[slug].state for slug in ("first", "second")]


def ran_again(out: Path) -> list[str]:
    """Stages with a run that was set aside."""
    return [slug for slug in ("first", "second") if (out / slug / "earlier").exists()]


@pytest.fixture(scope="module")
def done(runs_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pipeline that nobody killed. To be copied."""
    out = tmp_path_factory.mktemp("pipeline") / "out"
    status, printed = run(write(runs_home), out)
    assert status == 0, printed
    return out


@pytest.fixture
def copied(done: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(done, tmp_path / "out"))


def test_the_second_stage_begins_with_the_firsts_weights(runs_home: Path, done: Path) -> None:
    config = yaml.safe_load((done / "second/config.yaml").read_text())
    assert config["model"]["path"] == "../first/run/checkpoints/final"
    first = output_of("weights", done / "first/run")
    manifest = json.loads((done / "second/run/manifest.json").read_text())
    files = {Path(name).name: size for name, size in first.files.items()}
    assert manifest["model"]["weights"].keys() == {name for name in files if name.endswith(".safetensors")}
    state = json.loads((done / "pipeline.json").read_text())["stages"]
    assert state["second"]["given"] == {"first": first.digest}
    assert states(write(runs_home), done) == ["finished", "finished"]


def test_the_table_shows_steps_output_and_scores(runs_home: Path, done: Path, tmp_path: Path) -> None:
    command = Command(tmp_path / "printed", "status", str(done))
    assert command.ended() == 0, command.printed
    _, head, first, second = command.printed.splitlines()
    assert head.split() == ["stage", "kind", "state", "steps", "gave", "scores,", "before", "→", "after"]
    assert first.split()[:6] == ["first", "grpo", "finished", "2", "of", "2"]
    assert output_of("weights", done / "second/run").digest[:12] in second
    assert "heldout " in second


def test_what_is_done_is_not_done_again(runs_home: Path, copied: Path) -> None:
    status, printed = run(write(runs_home), copied, fault="step:1")  # a trainer would die
    assert status == 0, printed
    assert printed.count("done and up to date") == 2
    assert ran_again(copied) == []


@pytest.mark.parametrize("fault", [pytest.param("updated:1", marks=pytest.mark.slow), "updated:3"])
def test_a_killed_trainer_is_resumed_to_the_bit(runs_home: Path, done: Path, tmp_path: Path, fault: str) -> None:
    """In the first step of the first stage, and in the last of the second, which alone has three."""
    file, out = write(runs_home), tmp_path / "out"
    status, printed = run(file, out, fault=fault)
    slug = "first" if fault == "updated:1" else "second"
    assert status == 12
    assert f"stage {slug} was ended by SIGKILL" in printed
    assert states(file, out)[slug == "second"] == "interrupted"
    status, printed = run(file, out)
    assert status == 0, printed
    assert f"{slug}: resuming" in printed
    assert results(out) == results(done)
    assert ran_again(out) == []


def test_killed_between_its_entry_and_its_run(runs_home: Path, done: Path, tmp_path: Path) -> None:
    file, out = write(runs_home), tmp_path / "out"
    status, _ = run(file, out, fault="pipeline:recorded@2")
    assert status == -signal.SIGKILL
    assert states(file, out) == ["finished", "ready"]
    assert run(file, out)[0] == 0
    assert results(out) == results(done)
    assert ran_again(out) == []


@pytest.mark.slow
def test_a_trainer_that_outlives_the_command_is_waited_for(runs_home: Path, tmp_path: Path) -> None:
    file, out = write(runs_home, first={"optim": {"steps": 60}, "traces": {"tokens": ["none"]}}), tmp_path / "out"
    command = Command(tmp_path / "printed", "run", str(file), "--out", str(out))
    wait_for(lambda: (out / "first/run/metrics.jsonl").exists(), lambda: command.printed, command.process)
    command.process.kill()
    command.ended()
    status, printed = run(file, out)
    assert status == 0, printed
    assert states(file, out) == ["finished", "finished"]
    steps = [json.loads(line)["record"]["step"] for line in (out / "first/run/metrics.jsonl").open()]
    assert steps == list(range(1, 61))
    assert not (out / "first/run/superseded").exists()  # nothing was rewound: one trainer did all of it
    assert ran_again(out) == []


def test_stopped_by_a_signal_and_resumed(runs_home: Path, tmp_path: Path) -> None:
    file = write(runs_home, first={"optim": {"steps": 200}})
    out = tmp_path / "out"
    command = Command(tmp_path / "printed", "run", str(file), "--out", str(out))
    wait_for(lambda: (out / "first/run/metrics.jsonl").exists(), lambda: command.printed, command.process)
    command.process.send_signal(signal.SIGTERM)
    assert command.ended() == 75, command.printed
    assert "stage first was stopped at a checkpoint" in command.printed
    assert states(file, out) == ["interrupted", "waiting"]
    outcome = json.loads((out / "first/run/outcome.json").read_text())
    assert outcome["status"] == "stopped"
    assert 0 < outcome["steps_done"] < 200


def test_a_changed_stage_puts_all_below_it_out_of_date(runs_home: Path, done: Path, copied: Path) -> None:
    file = write(runs_home, first={"seed": 5})
    assert states(file, copied) == ["out_of_date", "out_of_date"]
    status, printed = run(file, copied)
    assert status == 12
    assert "stage first is out of date: its fields were changed" in printed
    assert results(copied) == results(done)
    assert ran_again(copied) == []
    status, printed = run(file, copied, "--from", "first")
    assert status == 0, printed
    assert states(file, copied) == ["finished", "finished"]
    assert ran_again(copied) == ["first", "second"]
    assert result(copied / "first/earlier/1") == results(done)[0]
    assert results(copied) != results(done)


def test_only_one_stage_again(runs_home: Path, copied: Path) -> None:
    file = write(runs_home, second={"seed": 7})
    assert states(file, copied) == ["finished", "out_of_date"]
    assert run(file, copied, "--only", "first")[0] == 0
    assert ran_again(copied) == []
    status, printed = run(file, copied, "--only", "second")
    assert status == 0, printed
    assert states(file, copied) == ["finished", "finished"]
    assert ran_again(copied) == ["second"]


def test_a_stage_whose_input_was_deleted_is_not_started(runs_home: Path, copied: Path) -> None:
    file = write(runs_home, second={"seed": 7})
    (copied / "first/run/checkpoints/final/model.safetensors").unlink()
    assert states(file, copied) == ["lost", "out_of_date"]
    status, printed = run(file, copied, "--only", "second")
    assert status == 12
    assert "first has lost what it gave" in printed
    assert not (copied / "second/run").exists() or ran_again(copied) == []


def test_a_failed_stage_ends_the_pipeline_with_its_error(runs_home: Path, tmp_path: Path) -> None:
    file = write(runs_home, first={"data": {"path": "absent.jsonl"}})
    status, printed = run(file, tmp_path / "out")
    assert status == 12
    assert "stage first failed" in printed
    assert "absent.jsonl" in printed
    assert states(file, tmp_path / "out") == ["failed", "waiting"]


def test_one_command_at_a_time(runs_home: Path, copied: Path) -> None:
    with PipelineFolder(copied).locked():
        status, printed = run(write(runs_home), copied)
    assert status == 9
    assert "another `grpo pipeline run` is at work" in printed


@pytest.mark.slow
def test_every_kind_of_stage(runs_home: Path, tmp_path: Path) -> None:
    """R1's stages: each gives what the next begins from, and a second call finds all of it done."""
    worked = [{"prompt": f"say {letter}", "completion": str(number)} for number, letter in enumerate("abcdefgh")]
    (runs_home / "worked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in worked))
    file = runs_home / "r1.yaml"
    file.write_text((FOLDER / "pipeline/r1.yaml").read_text(encoding="utf-8"))
    out = tmp_path / "out"
    status, printed = run(file, out)
    assert status == 0, printed
    pipeline = PipelineConfig.from_file(file)
    statuses = PipelineFolder(out).status(pipeline)
    assert {slug: now.state for slug, now in statuses.items()} == dict.fromkeys(pipeline.order, "finished")
    rows = (out / "kept/run/dataset/rows.jsonl").read_text().splitlines()
    assert statuses["kept"].output.words == f"{len(rows)} rows"
    given = PipelineFolder(out).state().stages["rl2"].given
    assert given == {slug: statuses[slug].output.digest for slug in ("again", "judge")}
    status, printed = run(file, out)
    assert status == 0
    assert printed.count("done and up to date") == len(pipeline.stages)


def test_digest_of_weights() -> None:
    """By hand: SHA-256 of {"a":"…","b":"…"}, whatever the order."""
    one, two = (FileEntry(size=1, sha256=letter * 64) for letter in "12")
    text = f'{{"a":"{"1" * 64}","b":"{"2" * 64}"}}'
    sha = subprocess.run(["sha256sum"], input=text.encode(), stdout=subprocess.PIPE, check=True).stdout.split()[0]
    assert weights_digest({"b": two, "a": one}) == sha.decode()
