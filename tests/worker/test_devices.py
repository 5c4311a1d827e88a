"""Which GPUs a worker counts as its own: those that CUDA would show its trainer."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.processes import wait_for
from tests.tables import cases
from worker import devices
from worker.devices import gpu_users, gpus, has_shown_gpus

# Prints what it is asked for, as the real one does on a machine with three devices, one of them cut in slices.
NVIDIA_SMI = """#!/bin/sh
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
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setattr(devices, "_shown", False)
    return program


@pytest.mark.parametrize(("named", "seen"), cases("worker/visible_devices", "named", "seen"))
def test_those_that_cuda_sees(named: str | None, seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if named is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
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


def test_a_program_that_fails_means_no_device(nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the driver does not answer."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvidia_smi.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    assert gpus() == []
    assert not has_shown_gpus()


def test_who_uses_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu_users() == {17, 4711}
    assert not has_shown_gpus()
    assert len(gpus()) == 3
    assert has_shown_gpus()


def test_no_answer_is_not_taken_for_nobody(nvidia_smi: Path) -> None:
    nvidia_smi.write_text("#!/bin/sh\nexit 9\n")
    assert gpu_users() is None
    nvidia_smi.write_text("#!/bin/sh\nexec sleep 600\n")
    assert gpu_users(0.2) is None
    nvidia_smi.unlink()
    assert gpu_users() == set()


def test_one_that_hangs_in_the_driver_is_the_only_one(
    nvidia_smi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that hangs in the kernel cannot be made on purpose: here SIGKILL is not sent."""
    monkeypatch.setattr(devices, "_KILLED_SECONDS", 0.1)
    asked = tmp_path / "asked"
    nvidia_smi.write_text(f"#!/bin/sh\necho $$ >> {asked}\nexec sleep 600\n")
    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "kill", lambda process: None)
        wait_for(lambda: gpu_users(0.2) is None and asked.exists() and asked.read_text(), "it has been asked")
    hangs = int(asked.read_text())
    assert [gpu_users(), gpus()] == [None, []]
    os.kill(hangs, signal.SIGKILL)
    nvidia_smi.write_text(NVIDIA_SMI)
    wait_for(lambda: gpu_users() == {17, 4711}, "it is gone, and another is asked")
    assert asked.read_text() == f"{hangs}\n"


def interpreter(folder: Path, body: str) -> Path:
    """A python of an environment of its own, which is asked for vLLM's version."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("body", "version"), [(None, "0.32.0"), ("echo 0.31.0", "0.31.0"), ("exit 1", None), ("", None)]
)
def test_the_version_of_vllm_s_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, body: str | None, version: str
) -> None:
    """A worker that names no environment for them starts servers from its own; one whose named environment is broken
    starts none: its trainer would ask that one all the same."""
    monkeypatch.setattr(devices, "version", {**dict.fromkeys(devices._PACKAGES, "1"), "vllm": "0.32.0"}.__getitem__)
    named = interpreter(tmp_path, body) if body else tmp_path / "none"
    versions = devices.node_info((), None if body is None else named).versions
    assert (versions["vllm"], versions.get("vllm-server")) == ("0.32.0", version)
    assert ("COHORT_VLLM_PYTHON" in caplog.text) == (version is None)


def test_that_version_is_asked_of_its_interpreter(tmp_path: Path) -> None:
    asks = 'case "$3" in *"version(\'vllm\')"*) echo 0.32.0;; *) exit 2;; esac'
    assert devices.node_info((), interpreter(tmp_path, asks)).versions["vllm-server"] == "0.32.0"
    assert "vllm-server" not in devices.node_info().versions
