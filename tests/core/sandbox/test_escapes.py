"""Attempts to get out of a box (tests/cases/sandbox/escapes.yaml), each against every sandbox it is aimed at: none may
succeed. And each against a setting without the protection it runs against: there it must, or it would prove nothing."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest
import yaml

from grpo_core.runtime import cgroups
from grpo_core.runtime.cgroups import Cgroup
from grpo_core.sandbox import Limits, self_test
from grpo_core.sandbox.bubblewrap import Bubblewrap
from grpo_core.sandbox.reaper_client import Dropped
from tests.needs import needs
from tests.tables import FOLDER

from .conftest import PATIENT, PROGRAMS, made, unfiltered_bubblewrap
from .machine import unboxed


@dataclass(frozen=True)
class Escape:
    """One item of the table, which says what the fields mean."""

    id: str
    area: str
    program: str
    quick: bool = False
    opened: Literal["unboxed", "unfiltered", "roomy", "nowhere"] = "unboxed"
    levels: tuple[str, ...] = ("bubblewrap", "landlock")
    root: bool = False
    limits: dict[str, Any] = field(default_factory=dict)
    roomy: dict[str, Any] = field(default_factory=dict)
    group: bool = False
    why: str = ""


ESCAPES = [Escape(**row) for row in yaml.safe_load((FOLDER / "sandbox/escapes.yaml").read_text(encoding="utf-8"))]
BASE = Limits(wall_seconds=20.0, output_bytes=4096)
FORKING = ("fork bomb", "threads", "zombies", "forks after raising the limit")
PRELUDE = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
PORT, PORT6, UDP, VICTIM, ASKER = map(int, sys.argv[1:6])
CANARY, SERVER, ABSTRACT, SITE, PROJECT, TOKEN = sys.argv[6:12]
def escaped(): os.write(1, b"ESCAPED")
def done(result):
    if result >= 0: escaped()
"""


def _case(escape, *level):
    marks = () if escape.quick else (pytest.mark.slow,)
    return pytest.param(escape, *level, id=": ".join([*level, escape.id]), marks=marks)


def _opened(opened):
    return pytest.mark.parametrize("escape", [_case(escape) for escape in ESCAPES if escape.opened == opened])


def test_no_attempt_is_lost_from_the_table():
    assert len({escape.id for escape in ESCAPES}) == len(ESCAPES) >= 123
    assert {escape.area for escape in ESCAPES} == {escape.area for escape in ESCAPES if escape.quick}
    assert [escape.id for escape in ESCAPES if (escape.opened == "nowhere") != bool(escape.why)] == []


@pytest.mark.parametrize(("escape", "level"), [_case(escape, level) for escape in ESCAPES for level in escape.levels])
def test_no_attempt_succeeds(escape, level, sandboxes, machine, monkeypatch):
    sandbox = sandboxes(level)
    memory, processes = cgroups.limits_possible()
    if (escape.group and not memory) or (level == "landlock" and escape.id in FORKING and not processes):
        pytest.skip("needs a control group that this user may make others in; without it the report says so")
    monkeypatch.setenv("COHORT_SECRET_CANARY", "1")
    ran = sandbox.run(PRELUDE + escape.program, arguments=machine.arguments(), limits=replace(BASE, **escape.limits))
    assert b"ESCAPED" not in ran.stdout, ran
    assert max(len(ran.stdout), len(ran.stderr)) <= BASE.output_bytes
    assert machine.harm() == []
    assert sandbox.run("print(1)").stdout == b"1\n"


@_opened("unboxed")
def test_it_succeeds_outside_a_box(escape, machine, open_folder):
    if escape.root:
        needs("root")
    ran = unboxed(PRELUDE + escape.program, machine.arguments(boxed=False), open_folder)
    assert b"ESCAPED" in ran.stdout or machine.harm() != [], ran


@_opened("unfiltered")
def test_it_succeeds_without_the_filter(escape, unfiltered, machine):
    ran = unfiltered.run(PRELUDE + escape.program, arguments=machine.arguments())
    assert b"ESCAPED" in ran.stdout, ran


@_opened("roomy")
def test_it_succeeds_where_the_limits_allow_it(escape, boxes, machine):
    ran = boxes.run(PRELUDE + escape.program, arguments=machine.arguments(), limits=replace(PATIENT, **escape.roomy))
    assert b"ESCAPED" in ran.stdout, ran


@pytest.fixture(scope="module")
def unfiltered():
    sandbox = made(unfiltered_bubblewrap(), "bubblewrap")
    yield sandbox
    sandbox.close()


# ------------------------------------------------------- the four ways in which such boxes were measured to fail unseen


BOMB = PROGRAMS["fork bomb"]


@pytest.fixture
def no_groups(monkeypatch):
    """Limits that the program itself is under, as on machines where no control group is writable."""
    monkeypatch.setattr(Cgroup, "make_limited", lambda memory, processes: None)
    monkeypatch.setattr(cgroups, "limits_possible", lambda: (False, False))


@pytest.mark.usefixtures("no_groups")
def test_1_the_limit_on_processes_binds_because_root_is_dropped(boxes):
    assert int(boxes.run(BOMB, limits=replace(PATIENT, processes=16)).stdout) == 15


@pytest.mark.usefixtures("no_groups")
def test_1_it_would_not_bind_root():
    needs("bwrap")
    needs("root")
    backend = Bubblewrap()
    backend.dropped = Dropped(None, "", ())
    for root, elsewhere in backend._moved.items():  # root reaches every folder where it is
        backend._fixed = [word.replace(elsewhere, str(root)) for word in backend._fixed]
    sandbox = made(backend, "bubblewrap")
    assert int(sandbox.run(BOMB, limits=replace(PATIENT, processes=16)).stdout) == 100
    sandbox.close()


@pytest.mark.usefixtures("no_groups")
def test_2_boxes_do_not_use_up_each_other_s_processes(boxes):
    """One after the other and two at once, with a limit that a few boxes together would pass."""
    program = "import os\nif os.fork() == 0: os._exit(0)\nos.wait()\nprint('good')"
    with boxes.open(BOMB + "time.sleep(600)", limits=replace(PATIENT, processes=4)):
        printed = [boxes.run(program, limits=replace(PATIENT, processes=2)).stdout for _ in range(40)]
    assert printed == [b"good\n"] * 40


def test_3_no_user_namespace_in_the_box_even_without_the_filter():
    backend = unfiltered_bubblewrap()
    sandbox = made(backend, "bubblewrap")
    program = "import ctypes; l = ctypes.CDLL(None, use_errno=True); print(l.unshare(0x10000000), ctypes.get_errno())"
    assert sandbox.run(program).stdout == b"-1 28\n"  # ENOSPC: none may be made
    backend._fixed.remove("--disable-userns")
    assert sandbox.run(program).stdout == b"0 0\n"
    sandbox.close()


def test_4_the_sum_over_processes_is_bounded_by_a_group_or_told_as_weaker(boxes, monkeypatch):
    many = PROGRAMS["much memory together"]
    limits = replace(PATIENT, memory_bytes=150 * 2**20, processes=16)
    if cgroups.limits_possible()[0]:
        assert boxes.run(many, limits=limits).stdout.strip() != b"6"
    monkeypatch.setattr(Cgroup, "make_limited", lambda memory, processes: None)
    assert boxes.run(many, limits=limits).stdout.strip() == b"6"
    monkeypatch.setattr(cgroups, "limits_possible", lambda: (False, False))
    assert any("control group" in line for line in self_test().weaker)
