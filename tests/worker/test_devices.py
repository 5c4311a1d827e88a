"""Which GPUs a worker counts as its own, those that CUDA would show its trainer; and whether one is free again."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.processes import session_members, wait_for
from tests.tables import cases
from tests.worker.conftest import shell_program
from worker import devices
from worker.devices import gpu_users, gpus, has_shown_gpus
from worker.node import facts
from worker.processes.child import Child, GroupSurvives

# Prints what it is asked for, as the real one does on a machine with three devices, one of them cut in slices.
NVIDIA_SMI = """
case "$*" in
  -L) cat <<'END'
GPU 0: NVIDIA A (UUID: GPU-aa11aaaa-0000)
GPU 1: NVIDIA B, two (UUID: GPU-aa22bbbb-1111)
GPU 2: NVIDIA C (UUID: GPU-cc33cccc-2222)
  MIG 1g.10gb     Device  0: (UUID: MIG-11111111-aaaa)
  MIG 2g.20gb+me  Device  1: (UUID: MIG-22222222-bbbb)
END
  ;;
  "--query-gpu=index,uuid,name,memory.total --format=csv,noheader,nounits") cat <<'END'
0, GPU-aa11aaaa-0000, NVIDIA A, 1
1, GPU-aa22bbbb-1111, NVIDIA B, two, 2
2, GPU-cc33cccc-2222, NVIDIA C, 3
END
  ;;
  "--query-compute-apps=pid --format=csv,noheader") printf '17\n4711\n[N/A]\n' ;;
  *) exit 2 ;;
esac
"""


@pytest.fixture(autouse=True)
def three_gpus(nvidia_smi: Callable[[str], Path]) -> Path:
    return nvidia_smi(NVIDIA_SMI)


@pytest.mark.parametrize(("named", "seen"), cases("worker/visible_devices", "named", "seen"))
def test_those_that_cuda_sees(named: str | None, seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    kinds = [
        ("A", "NVIDIA A", 1024**2),
        ("B", "NVIDIA B, two", 2 * 1024**2),
        ("C", "NVIDIA C", 3 * 1024**2),
        ("1", "MIG 1g.10gb", 10 * 10**9),
        ("2", "MIG 2g.20gb+me", 20 * 10**9),
    ]
    devices = {letter: {"kind": "cuda", "name": name, "memory_bytes": size} for letter, name, size in kinds}
    assert gpus() == [devices[letter] for letter in seen]


def test_who_uses_the_gpus() -> None:
    assert gpu_users() == {17, 4711}
    assert not has_shown_gpus()
    assert len(gpus()) == 3
    assert has_shown_gpus()


def test_no_answer_is_not_taken_for_nobody(nvidia_smi: Any, three_gpus: Path) -> None:
    nvidia_smi("exit 9")
    assert gpu_users() is None
    nvidia_smi("exec sleep 600")
    assert gpu_users(0.2) is None
    three_gpus.unlink()
    assert gpu_users() == set()


def test_one_that_hangs_in_the_driver_is_the_only_one(
    nvidia_smi: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that hangs in the kernel cannot be made on purpose: here SIGKILL is not sent."""
    monkeypatch.setattr(devices, "_KILLED_SECONDS", 0.1)
    calls = tmp_path / "calls"
    nvidia_smi(f"echo $$ >> {calls}\nexec sleep 600")
    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "kill", lambda process: None)
        wait_for(lambda: gpu_users(0.2) is None and calls.exists() and calls.read_text(), "it has been asked")
    hangs = int(calls.read_text())
    assert [gpu_users(), gpus()] == [None, []]
    os.kill(hangs, signal.SIGKILL)
    nvidia_smi(NVIDIA_SMI)
    wait_for(lambda: gpu_users() == {17, 4711}, "it is gone, and another is asked")
    assert calls.read_text() == f"{hangs}\n"


ASKED = 'case "$3" in *"version(\'vllm\')"*) echo 0.31.0;; *) exit 2;; esac'


@pytest.mark.parametrize(("body", "version"), [(None, "0.32.0"), (ASKED, "0.31.0"), ("exit 1", None), ("", None)])
def test_the_version_of_vllm_s_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, body: str | None, version: str
) -> None:
    """A worker that names no environment for them starts servers from its own; one whose named environment is broken
    starts none: its trainer would ask that one all the same."""
    assert "vllm-server" not in facts.machine().versions
    monkeypatch.setattr(facts, "version", {**dict.fromkeys(facts._PACKAGES, "1"), "vllm": "0.32.0"}.__getitem__)
    named = shell_program(tmp_path / "python", body) if body else tmp_path / "none"
    versions = facts.machine((), None if body is None else named).versions
    assert (versions["vllm"], versions.get("vllm-server")) == ("0.32.0", version)
    assert ("COHORT_VLLM_PYTHON" in caplog.text) == (version is None)


# ---------------------------------------------------------------------- before the GPU is given to another run


@pytest.fixture
def sleeper(tmp_path: Path) -> Child:
    return Child(["sleep", "600"], cwd=tmp_path, env=dict(os.environ), log=tmp_path / "log.txt")


def test_an_nvidia_smi_that_answers_no_more_proves_nothing(
    sleeper: Child, nvidia_smi: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had shown a GPU, so the driver hangs, and the trainer may still hold it. Here the kill took all the time."""
    prove = Child._prove_devices_free
    monkeypatch.setattr(Child, "_prove_devices_free", lambda child, deadline: prove(child, time.monotonic()))
    monkeypatch.setattr("worker.processes.child._ANSWER_SECONDS", 0.2)
    nvidia_smi("echo 0, GPU-aa11-0000, NVIDIA A, 1")
    assert len(gpus()) == 1
    nvidia_smi("exec sleep 600")
    with pytest.raises(GroupSurvives) as caught:
        sleeper.reap()
    assert sleeper.pid in caught.value.holders
    assert session_members(sleeper.pid) == []


def test_an_nvidia_smi_that_comes_back_in_time_is_believed(
    sleeper: Child, nvidia_smi: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_shown", True)
    calls = tmp_path / "calls"
    nvidia_smi(f"echo call >> {calls}; test $(wc -l < {calls}) -ge 3")
    assert sleeper.reap() == -signal.SIGKILL
    assert calls.read_text() == "call\n" * 3


def test_an_nvidia_smi_that_fails_means_no_device_and_holds_nobody_up(sleeper: Child, nvidia_smi: Any) -> None:
    """As where the driver does not answer, or on a machine without GPUs."""
    nvidia_smi("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    assert gpus() == []
    assert not has_shown_gpus()
    assert sleeper.reap() == -signal.SIGKILL
