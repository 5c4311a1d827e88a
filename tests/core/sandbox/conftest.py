"""One sandbox of each level for all tests of a session."""

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_core.errors import SandboxError
from grpo_core.runtime import cgroups
from grpo_core.sandbox import Box, Limits, Ran, Report, Sandbox
from grpo_core.sandbox.bubblewrap import Bubblewrap
from grpo_core.sandbox.landlock import Landlock
from grpo_core.sandbox.seccomp import ALLOW, RETURN
from tests.needs import needs
from tests.tables import FOLDER

from .machine import Machine, machine_in

Level = Callable[[str], Sandbox]
PROGRAMS: dict[str, str] = yaml.safe_load((FOLDER / "sandbox/programs.yaml").read_text(encoding="utf-8"))
PATIENT = Limits(wall_seconds=300.0)
"""Those of a box, but that a busy machine may take its time."""


class Patient(Sandbox):
    """Gives its boxes these limits where a test names none."""

    def run(self, program: str, **more: Any) -> Ran:
        return super().run(program, **{"limits": PATIENT, **more})

    def open(self, program: str, **more: Any) -> Box:
        return super().open(program, **{"limits": PATIENT, **more})


def made(backend: Bubblewrap | Landlock, level: str) -> Sandbox:
    return Patient(Report(level, "under test", (), (), "", ""), backend)  # type: ignore[arg-type]


def unfiltered_bubblewrap() -> Bubblewrap:
    """Without its filter of system calls."""
    needs("bwrap")
    backend = Bubblewrap()
    backend._filter = struct.pack("=HBBI", RETURN, 0, 0, ALLOW)
    return backend


def needs_groups() -> None:
    if cgroups.limits_possible() != (True, True):
        pytest.skip("needs a control group that this user may make others in")


@pytest.fixture(scope="session")
def sandboxes() -> Iterator[Level]:
    with ExitStack() as stack:

        @cache
        def of(level: str) -> Sandbox:
            sandbox = made(Bubblewrap() if level == "bubblewrap" else Landlock(), level)
            stack.callback(sandbox.close)
            return sandbox

        def present(level: str) -> Sandbox:
            """Skips where this machine has no such level."""
            if level == "bubblewrap":
                needs("bwrap")
                return of(level)
            try:
                return of(level)
            except SandboxError as error:
                pytest.skip(f"needs Landlock: {error}")

        yield present


@pytest.fixture(params=["bubblewrap", "landlock"])
def each(request: pytest.FixtureRequest, sandboxes: Level) -> Sandbox:
    return sandboxes(request.param)


@pytest.fixture
def boxes(sandboxes: Level) -> Sandbox:
    """Boxes of bubblewrap."""
    return sandboxes("bubblewrap")


@pytest.fixture
def machine(open_folder: Path) -> Iterator[Machine]:
    with machine_in(open_folder) as machine:
        yield machine
