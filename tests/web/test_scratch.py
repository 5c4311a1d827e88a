"""What a killed process left of its work is removed by the next, and never the folder of one that lives."""

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cohort.base.environment import environment
from cohort.base.paths import ROOT
from cohort.base.scratch import scratch_folder
from cohort.records.services import record_reissue, record_seal
from cohort.runs.models import Run
from tests.factories import sealed_run
from tests.processes import clean_environment

WORK = """
import sys
from cohort.base.scratch import scratch_folder
with scratch_folder("cards") as folder:
    (folder / "pack").write_bytes(b"completions")
    print(folder, flush=True)
    sys.stdin.read()
print("ended", flush=True)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(environment(), "home", tmp_path)
    return tmp_path


@contextmanager
def working(home: Path) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    """(another process that is in the middle of its work, its folder)."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORK],
        env=clean_environment() | {"COHORT_HOME": str(home), "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            folder = Path(process.stdout.readline().strip())
            assert (folder / "pack").read_bytes() == b"completions"
            yield process, folder
        finally:
            process.kill()


def left(home: Path, purpose: str = "cards") -> list[str]:
    return sorted(path.name for path in (home / "scratch" / purpose).iterdir() if path.is_dir())


def test_what_a_killed_process_left_is_removed_alone(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    with working(home) as (process, folder), working(home) as (other, its):
        with scratch_folder("cards") as mine, scratch_folder("cards") as second:
            assert len({mine, second, folder, its}) == 4
            assert list(mine.iterdir()) == []
            assert (folder / "pack").read_bytes() == b"completions"
        assert left(home) == sorted([folder.parent.name, its.parent.name])
        other.kill()
        other.wait()
        assert (its / "pack").exists()
        with scratch_folder("cards"):
            assert (folder / "pack").exists()
            assert not its.exists()
        assert process.communicate("")[0] == "ended\n"
        assert left(home) == []
    assert f"{its.parent} was left by a process that ended" in caplog.text
    assert str(folder.parent) not in caplog.text


def test_each_purpose_is_by_itself_and_a_failure_leaves_nothing(home: Path) -> None:
    with working(home) as (process, folder):
        process.kill()
        process.wait()
        with pytest.raises(FileNotFoundError, match="nothing here"), scratch_folder("verify") as mine:
            (mine / "nothing here").rename(mine / "card.zip")
        assert left(home, "verify") == []
        assert folder.exists()


def test_what_cannot_be_removed_is_told_and_stops_nothing(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    stuck = home / "scratch" / "cards" / "stuck"
    (stuck / ".lock").mkdir(parents=True)
    with scratch_folder("cards") as mine, caplog.at_level(logging.WARNING):
        assert mine.is_dir()
    assert f"{stuck} " in caplog.text
    assert left(home) == ["stuck"]


@pytest.mark.django_db
def test_cards_are_built_in_such_a_folder(launch: Callable[..., Run]) -> None:
    """Of a record, and of cards issued again: a killed worker's completions do not stay on its disk."""
    run = sealed_run.finished(launch())
    gone = environment().home_folder / "scratch" / "cards" / "killed"

    def removed_by(build: Callable[[], Any]) -> Any:
        gone.mkdir(parents=True)
        built = build()
        assert not gone.exists()
        return built

    record = removed_by(lambda: record_seal(run=run))
    removed_by(lambda: record_reissue(record=record, reason="x"))
    assert left(environment().home_folder) == []
