"""`cohort demo` from start to end, twice in one home, with a base model that was hardly taught, to be quick."""

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.e2e.conftest import clean_environment
from tests.e2e.starting import belonging_to, cohort, free_port, wait_for

pytestmark = pytest.mark.e2e

FOLDER = "demo-adder"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / FOLDER
    words = [sys.executable, "-P", "-m", "grpo_core.cli", "cold-start", "--out", str(folder), "--steps", "8"]
    subprocess.run(words, env=clean_environment(), check=True)
    return folder


@pytest.fixture
def home(open_folder: Path, model: Path) -> Path:
    home = open_folder / "home"
    shutil.copytree(model, home / "models" / FOLDER)
    return home


def demo(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = cohort("demo", "--home", str(home), "--port", str(free_port()), *words)
    assert belonging_to(home) == []
    return done


def card_in(printed: str) -> Path:
    found = re.search(r"^card +(\S+\.zip)$", printed, re.MULTILINE)
    assert found, printed
    return Path(found[1])


def test_it_works_twice_and_builds_nothing_again(home: Path) -> None:
    first = demo(home, "--steps", "2")
    assert first.returncode == 0, first.stdout + first.stderr
    out = first.stdout
    assert re.search(r"one-time password \S{19}\b", out)
    accuracy = r"^{} training +\S+% right \(\d+ of 512; 95 % interval \S+% to \S+%\)$"
    for when in ("before", "after"):
        assert re.search(accuracy.format(when), out, re.MULTILINE), out
    phases = ["queued", "loading", "evaluating before", "training", "evaluating after", "succeeded"]
    seen = [phase for phase in phases if re.search(f"^{phase} ", out, re.MULTILINE)]
    assert seen[-1] == "succeeded"
    assert "training" in seen
    assert re.search(r"cohort verify +accepted", out)
    assert re.search(r"page +http://127\.0\.0\.1:\d+/p/demo/runs/\d+/", out)
    card = card_in(out)
    assert cohort("verify", str(card)).returncode == 0

    changed = bytearray(card.read_bytes())
    changed[len(changed) // 2] ^= 1
    (card.parent / "changed.zip").write_bytes(changed)
    assert cohort("verify", str(card.parent / "changed.zip")).returncode == 1

    kept = made_once(home)
    assert kept
    second = demo_on_a_terminal(home)
    assert "building" not in second
    assert card_in(second) != card
    assert made_once(home) == kept
    counted = cohort("manage", "shell", "--no-imports", "--command", COUNTS, COHORT_HOME=str(home)).stdout
    assert counted.split() == ["1", "1", "1", "2", "1", "2"]


COUNTS = """
from cohort.accounts.models import Project, User
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.runs.models import Run
print(*(kind.objects.count() for kind in (User, Project, BaseModel, PromptDataset, VerifierVersion, Run)))
"""


def made_once(home: Path) -> dict[Path, int]:
    """When each file was written that a second demo must find and not make."""
    folders = ("models", "demo-data", "artifacts/datasets")
    return {path: path.stat().st_mtime_ns for folder in folders for path in (home / folder).rglob("*")}


def demo_on_a_terminal(home: Path) -> str:
    """What a demo on a terminal shows: it draws a bar, serves on when it is done, and ends well at Ctrl-C."""
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "cohort.cli", "demo", "--home", str(home), "--port", "0", "--steps", "2"],
        env=clean_environment(),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = bytearray()

    def read() -> None:
        try:
            while piece := os.read(terminal, 65536):
                shown.extend(piece)
        except OSError:
            return  # Linux answers so when the other side has closed

    reader = threading.Thread(target=read)
    reader.start()
    try:
        wait_for(lambda: b"Serving on." in shown, lambda: shown.decode(), process)
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 0
    finally:
        process.kill()
        process.wait()
        reader.join()
        os.close(terminal)
    assert re.search(rb"\r\x1b\[Ktraining +\[#*\.*\] step \d of 2", bytes(shown))
    assert belonging_to(home) == []
    return shown.decode().replace("\r\n", "\n")


def test_a_run_that_fails_ends_the_demo_with_its_reason(home: Path) -> None:
    (home / "models" / FOLDER / "tokenizer.json").unlink()
    done = demo(home, "--steps", "2")
    assert done.returncode == 1
    assert "the run is failed:" in done.stderr
    assert "tokenizer" in done.stderr
    assert "Traceback" not in done.stderr.split("\n  | ")[0]


def test_it_does_not_disturb_what_runs_in_the_home(home: Path) -> None:
    from tests.e2e.starting import up

    with up(home, "--no-trainer") as (started, _):
        done = cohort("demo", "--home", str(home), "--port", str(free_port()))
        assert done.returncode == 1
        assert f"in use by `cohort up` (process {started.process.pid})" in done.stderr
        assert started.process.poll() is None
