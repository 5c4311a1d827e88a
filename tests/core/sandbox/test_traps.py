"""The four ways in which such boxes were measured to fail unseen."""

from dataclasses import replace

import pytest

from grpo_core.sandbox import cgroups, self_test
from grpo_core.sandbox.bubblewrap import Bubblewrap
from grpo_core.sandbox.keeping import Dropped
from tests.needs import needs

from .conftest import PATIENT, PROGRAMS, made, unfiltered_bubblewrap

BOMB = PROGRAMS["fork bomb"]


@pytest.fixture
def no_groups(monkeypatch):
    """Limits that the program itself is under, as on machines where no control group is writable."""
    monkeypatch.setattr(cgroups, "make", lambda memory, processes: None)
    monkeypatch.setattr(cgroups, "possible", lambda: (False, False))


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
    if cgroups.possible()[0]:
        assert boxes.run(many, limits=limits).stdout.strip() != b"6"
    monkeypatch.setattr(cgroups, "make", lambda memory, processes: None)
    assert boxes.run(many, limits=limits).stdout.strip() == b"6"
    monkeypatch.setattr(cgroups, "possible", lambda: (False, False))
    assert any("control group" in line for line in self_test().weaker)
