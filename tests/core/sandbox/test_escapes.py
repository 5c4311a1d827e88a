"""Attempts to get out of a box, each against every level it applies to: none may succeed. And each against a setting
without the protection it runs against: there it must succeed, or it would prove nothing here."""

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_core.sandbox import Limits, Sandbox, cgroups
from grpo_core.sandbox.bubblewrap import Bubblewrap
from grpo_core.sandbox.seccomp import ALLOW, RETURN
from tests.needs import needs

from .attack import PRELUDE, Attack
from .attacks_kernel import KERNEL, PROCESSES
from .attacks_limits import LIMITS
from .attacks_reach import FILES, NETWORK
from .conftest import Machine, made, unboxed

ATTACKS = [*NETWORK, *FILES, *PROCESSES, *KERNEL, *LIMITS]
AGAINST = [(attack, level) for attack in ATTACKS for level in attack.levels]
BASE = Limits(wall_seconds=20.0, output_bytes=4096)
FORKING = ("fork bomb", "threads", "zombies", "forks after raising the limit")


def test_there_are_at_least_sixty_and_no_two_of_a_name() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) >= 60
    assert sum("landlock" in attack.levels for attack in ATTACKS) >= 60
    assert [attack.name for attack in ATTACKS if (attack.opened == "nowhere") != bool(attack.why)] == []


@pytest.mark.parametrize(("attack", "level"), AGAINST, ids=[f"{level}: {attack.name}" for attack, level in AGAINST])
def test_no_attempt_succeeds(
    attack: Attack,
    level: str,
    sandboxes: Callable[[str], Sandbox],
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sandbox = sandboxes(level)
    _skip_without_group(attack, level)
    monkeypatch.setenv("COHORT_SECRET_CANARY", "1")
    ran = sandbox.run(PRELUDE + attack.program, arguments=machine.arguments(), limits=replace(BASE, **attack.limits))
    assert b"ESCAPED" not in ran.stdout, ran
    assert len(ran.stdout) <= BASE.output_bytes
    assert len(ran.stderr) <= BASE.output_bytes
    assert machine.harm() == []
    assert sandbox.run("print(1)").stdout == b"1\n"


@pytest.mark.parametrize("attack", [a for a in ATTACKS if a.opened == "unboxed"], ids=lambda attack: attack.name)
def test_each_succeeds_outside_a_box(attack: Attack, machine: Machine, open_folder: Path) -> None:
    if attack.root:
        needs("root")
    ran = unboxed(PRELUDE + attack.program, machine.arguments(boxed=False), open_folder)
    assert b"ESCAPED" in ran.stdout or machine.harm() != [], ran


@pytest.mark.parametrize("attack", [a for a in ATTACKS if a.opened == "unfiltered"], ids=lambda attack: attack.name)
def test_each_succeeds_without_the_filter(attack: Attack, unfiltered: Sandbox, machine: Machine) -> None:
    ran = unfiltered.run(PRELUDE + attack.program, arguments=machine.arguments(), limits=BASE)
    assert b"ESCAPED" in ran.stdout, ran


@pytest.mark.parametrize("attack", [a for a in ATTACKS if a.opened == "roomy"], ids=lambda attack: attack.name)
def test_each_succeeds_where_the_limits_allow_it(attack: Attack, boxes: Sandbox, machine: Machine) -> None:
    ran = boxes.run(PRELUDE + attack.program, arguments=machine.arguments(), limits=replace(BASE, **attack.roomy))
    assert b"ESCAPED" in ran.stdout, ran


@pytest.fixture(scope="module")
def unfiltered() -> Sandbox:
    needs("bwrap")
    backend = Bubblewrap()
    backend._filter = struct.pack("=HBBI", RETURN, 0, 0, ALLOW)
    return made(backend, "bubblewrap")


def _skip_without_group(attack: Attack, level: str) -> None:
    memory, processes = cgroups.possible()
    if (attack.group and not memory) or (level == "landlock" and attack.name in FORKING and not processes):
        pytest.skip("needs a control group that this user may make others in; without it the report says so")
