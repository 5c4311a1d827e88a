"""`cohort demo` from start to end, twice in one home, with a base model that was hardly taught, to be quick."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs
from tests.processes import COHORT, belonging_to, clean_environment, cohort, shell, wait_for

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


def demo(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = cohort("demo", "--home", str(home), "--port", "0", *words)
    assert belonging_to(home) == []
    return done


def card_in(printed: str) -> Path:
    card = re.search(r"^card +(\S+\.zip)$", printed, re.MULTILINE)
    assert card, printed
    return Path(card[1])


def test_it_works_twice_and_builds_nothing_again(demo_home: Path) -> None:
    home = demo_home
    first = demo(home, "--steps", "2")
    assert first.returncode == 0, first.stdout + first.stderr
    out = first.stdout
    assert re.search(r"with the password \S{19}\b", out)
    accuracy = r"^{} training +\S+% right \(\d+ of 512; 95 % interval \S+% to \S+%\)$"
    for when in ("before", "after"):
        assert re.search(accuracy.format(when), out, re.MULTILINE), out
    assert re.search("^succeeded ", out, re.MULTILINE)
    states = "queued starting evaluating training evaluating sealing succeeded"
    assert shell(home, STATES).strip() == states
    assert re.search(r"cohort verify +accepted", out)
    assert re.search(r"verify\.pyz +accepted", out)
    assert re.search(r"page +http://127\.0\.0\.1:\d+/p/demo/runs/\d+/", out)
    card = card_in(out)
    assert cohort("verify", str(card), COHORT_HOME=str(home)).returncode == 0

    kept = made_once(home)
    assert kept
    second = demo_on_a_terminal(home)
    assert "building" not in second
    assert card_in(second) != card
    assert made_once(home) == kept
    assert shell(home, COUNTS).split() == ["1", "1", "1", "2", "1", "2"]


STATES = """
from cohort.runs.models import RunEvent
print(*RunEvent.objects.filter(kind="state").order_by("pk").values_list("data__to", flat=True))
"""
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
    words = [*COHORT, "demo", "--home", str(home), "--port", "0", "--steps", "2"]
    process = subprocess.Popen(words, env=clean_environment(), stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.set_blocking(terminal, False)
    shown = bytearray()

    def read() -> bytes:
        with suppress(OSError):  # nothing to read, or the other side has closed
            shown.extend(os.read(terminal, 65536))
        return shown

    try:
        wait_for(lambda: b"Serving on." in read(), lambda: shown.decode(), process)
        process.send_signal(signal.SIGINT)
        wait_for(lambda: read() and process.poll() is not None, lambda: shown.decode())
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    assert re.search(rb"\r\x1b\[K[a-z]", bytes(shown)), "each line is drawn over the one before"
    assert belonging_to(home) == []
    return shown.decode().replace("\r\n", "\n")


def test_a_run_that_fails_ends_the_demo_with_its_reason(demo_home: Path) -> None:
    config = demo_home / "models" / "demo-adder" / "config.json"
    settings = json.loads(config.read_text())
    config.write_text(json.dumps(settings | {"hidden_size": settings["hidden_size"] * 2}))
    done = demo(demo_home, "--steps", "2")
    assert done.returncode == 1
    assert "the run is failed:" in done.stderr
    assert "Traceback" not in done.stderr.split("\n  | ")[0]


def test_prompts_that_cannot_be_made_end_the_demo_before_its_run(demo_home: Path) -> None:
    (demo_home / "models" / "demo-adder" / "tokenizer.json").unlink()
    done = demo(demo_home, "--steps", "2")
    assert done.returncode == 1
    assert "The check of the prompts did not end well" in done.stderr
    assert "tokenizer" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("target", "problems"), [("demo", 512), pytest.param("demo-chat", 100, marks=pytest.mark.real)]
)
def test_the_demo_learns_and_its_card_verifies(cohort_home: Path, target: str, problems: int) -> None:
    """`make demo` and `make demo-chat`, whole and with their defaults: accuracy after training is above accuracy
    before, and the intervals do not overlap."""
    needs("make", *(["smollm2"] if target == "demo-chat" else []))
    # This environment is the one to be tested, so it is not made anew.
    words = ["make", "--old-file=.venv/.made-from", target, f"BIN={Path(sys.executable).parent}"]
    words += [f"COHORT_HOME={cohort_home}", "PORT=0"]
    run: dict[str, Any] = {"env": clean_environment("MAKE"), "stdin": subprocess.DEVNULL, "cwd": ROOT}
    done = subprocess.run(words, **run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    interval = r"^{} training +\S+ right \(\d+ of {}; 95 % interval (\S+)% to (\S+)%\)$"
    before, after = (re.search(interval.format(when, problems), done.stdout, re.M) for when in ("before", "after"))
    assert before, done.stdout
    assert after, done.stdout
    assert float(after[1]) > float(before[2])
    suites = re.findall(r"^\w+ +(\S+)% +\S+%  [+-]\S+ points \[", done.stdout, re.MULTILINE)
    assert any(float(share) > 0 for share in suites) == (target == "demo-chat"), done.stdout
    checked = cohort("verify", str(card_in(done.stdout)), COHORT_HOME=str(cohort_home))
    assert checked.returncode == 0, checked.stdout + checked.stderr
