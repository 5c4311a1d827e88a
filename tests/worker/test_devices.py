"""Which GPUs a worker counts as its own: those that CUDA would show its trainer."""

from pathlib import Path

import pytest

from worker.devices import gpus

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
    return program


@pytest.mark.parametrize(
    ("named", "seen"),
    [
        (None, "ABC"),
        ("", ""),
        ("-1", ""),
        ("none", ""),
        ("0", "A"),
        ("2,0", "CA"),
        (" 1 , 2 ", "BC"),
        ("0,-1,2", "A"),  # the first that is none ends the list
        ("1,3,2", "B"),
        ("7", ""),
        ("0,0", ""),  # twice the same: CUDA takes none
        ("GPU-cc33cccc-2222,GPU-aa11aaaa-0000", "CA"),
        ("GPU-c,GPU-aa2", "CB"),
        ("GPU-aa", ""),  # could be two
        ("GPU-cc,GPU-ff,GPU-aa1", "C"),
        ("GPU-cc,GPU-cc33", ""),
        ("GPU-cc,0", "C"),
        ("0,GPU-cc", "A"),
        ("GPU-", ""),
        ("cc33cccc-2222", ""),
    ],
)
def test_those_that_cuda_sees(named: str | None, seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if named is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    names = {"NVIDIA A": "A", "NVIDIA B, two": "B", "NVIDIA C": "C"}
    assert "".join(names[gpu["name"]] for gpu in gpus()) == seen


def test_what_is_told_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpus() == [{"kind": "cuda", "name": "NVIDIA B, two", "memory_bytes": 2 * 1024 * 1024}]


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("MIG-22222222-bbbb", [{"kind": "cuda", "name": "MIG 2g.20gb+me", "memory_bytes": 20 * 10**9}]),
        ("MIG-1,MIG-2", [{"kind": "cuda", "name": "MIG 1g.10gb", "memory_bytes": 10 * 10**9}]),  # CUDA takes one
        ("MIG-3", []),
    ],
)
def test_a_slice_of_a_device(named: str, told: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert gpus() == told


def test_a_program_that_fails_means_no_device(nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the driver does not answer."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvidia_smi.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    assert gpus() == []
