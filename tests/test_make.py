"""The Makefile: one line of help for each target, one clear line when Python is missing, nothing installed twice."""

import os
import re
import shutil
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.needs import needs
from tests.processes import clean_environment

ROOT = Path(__file__).resolve().parent.parent
TARGETS = {"help", "setup", "demo", "test", "lint", "chaos", "bench", "bench-env", "vllm-env", "deepspeed-env", "clean"}


def make(folder: Path, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    needs("make")
    return subprocess.run(
        ["make", "--no-print-directory", *words],
        cwd=folder,
        env=clean_environment("MAKE") | environment,
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


def test_every_package_that_is_installed_is_pinned() -> None:
    """All that pyproject.toml names for development, what those need in turn, and what only an older Python adds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    ours = ("platform", "embedded", "worker", "train", "dev", "tasks", "deepspeed")
    left = [Requirement(word) for word in (*project["dependencies"], *(word for name in ours for word in extras[name]))]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {normal(line.split("==")[0]) for line in lines if "==" in line}
    seen: set[tuple[str, str]] = set()
    while left:
        wanted = left.pop()
        for extra in ("", *wanted.extras):
            known = (normal(wanted.name), extra)
            if known in seen or known[0] == "cohort-grpo":
                continue
            seen.add(known)
            oldest = {"python_version": "3.11", "python_full_version": "3.11.0", "extra": extra}
            try:
                further = [Requirement(text) for text in requires(wanted.name) or []]
            except PackageNotFoundError:
                continue  # of a Python that is not this one
            # What torch for GPUs needs beside it, it pins itself.
            loose = [one for one in further if not str(one.specifier).startswith("==")]
            left += [one for one in loose if one.marker is None or one.marker.evaluate(oldest)]
    assert sorted({name for name, _ in seen} - pinned) == []


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
