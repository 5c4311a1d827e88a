"""The Makefile: one line of help for each target, one clear line when Python is missing, nothing installed twice.

Also that a check which needs something absent cannot vanish unseen.
"""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests import needs as needs_module
from tests.needs import needs

ROOT = Path(__file__).resolve().parent.parent
TARGETS = {"help", "setup", "demo", "test", "lint", "chaos", "bench", "bench-env", "clean"}

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make (Debian: apt-get install make)")


def make(folder: Path, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "COHORT_"))}
    return subprocess.run(
        ["make", "--no-print-directory", *words],
        cwd=folder,
        env=kept | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that make reads, with nothing installed."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def test_help_is_the_default_and_has_one_line_for_each_target(checkout: Path) -> None:
    shown = make(checkout)
    assert shown.returncode == 0, shown.stderr
    listed = dict(re.findall(r"^  make ([a-z-]+) +(\S.*)$", shown.stdout, re.MULTILINE))
    assert set(listed) == TARGETS
    assert shown.stdout == make(checkout, "help").stdout
    assert len(shown.stdout.splitlines()) == len(TARGETS)


def test_no_python_is_said_in_one_line(checkout: Path) -> None:
    done = make(checkout, "setup", "PYTHON=")
    assert done.returncode != 0
    assert "Cohort needs Python 3.11 or newer and found none." in done.stderr
    assert not (checkout / ".venv").exists()


def test_an_old_python_is_said_in_one_line(checkout: Path) -> None:
    old = checkout / "python-old"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = make(checkout, "setup", f"PYTHON={old}")
    assert done.returncode != 0
    assert "is not one. Name another: make setup PYTHON=" in done.stderr
    assert not (checkout / ".venv").exists()


def test_nothing_is_installed_twice(checkout: Path) -> None:
    """With a stamp newer than what it was made from, setup runs no command; a changed constraint runs them again."""
    stamp = checkout / ".venv" / ".made-from"
    stamp.parent.mkdir()
    stamp.touch()
    assert make(checkout, "setup", "--question").returncode == 0
    later = stamp.stat().st_mtime + 10
    os.utime(checkout / "constraints.txt", (later, later))
    assert make(checkout, "setup", "--question").returncode == 1


def test_torch_is_installed_first_and_pinned(checkout: Path) -> None:
    """Left to the dependencies, pip takes the newest torch with several gigabytes of GPU libraries."""
    lines = make(checkout, "setup", "--dry-run").stdout.splitlines()
    installs = [line for line in lines if " -m pip " in line]
    pinned = re.search(r"^torch==\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned
    assert f"'{pinned[0]}'" in installs[0]
    assert "--editable" not in installs[0]
    assert "--editable '.[dev]'" in installs[1]
    assert all("--constraint constraints.txt" in line for line in installs)


def test_every_dependency_is_pinned() -> None:
    """Each package that pyproject.toml names for development has its version in constraints.txt."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    ours = ("platform", "embedded", "worker", "train", "dev")
    wanted = [*project["dependencies"], *(word for name in ours for word in extras[name])]
    names = {normal(re.split(r"[\[<>=]", word)[0]) for word in wanted} - {"cohort-grpo"}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {normal(line.split("==")[0]) for line in lines if "==" in line}
    assert sorted(names - pinned) == []


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("COHORT_REQUIRE", raising=False)
    monkeypatch.setattr(needs_module, "present", needs_module.present.__wrapped__)


@pytest.mark.usefixtures("nothing_installed")
def test_what_is_absent_skips_with_what_to_install() -> None:
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        needs("chromium")


@pytest.mark.usefixtures("nothing_installed")
def test_what_is_required_and_absent_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHORT_REQUIRE", "bwrap,chromium")
    with pytest.raises(pytest.fail.Exception, match="COHORT_REQUIRE says it must be here"):
        needs("chromium")
    with pytest.raises(pytest.skip.Exception):
        needs("vllm")


def test_a_required_name_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt requirement would require nothing."""
    monkeypatch.setenv("COHORT_REQUIRE", "chrome")
    with pytest.raises(pytest.fail.Exception, match="chrome is not one of"):
        needs("bwrap")
