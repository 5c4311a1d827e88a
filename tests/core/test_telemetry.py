"""What a step cost the machine: rates by hand, resident memory for real, NVML by a stand-in for its library."""

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from grpo_core import nvml as module
from grpo_core.nvml import Watch
from grpo_core.telemetry import Telemetry, resident_peak
from grpo_core.training.ranks import Ranks
from tests.processes import wait_for

from .runs import make_home, rows, setting

MIB = 2**20


class Nvml:
    """Answers as the library does, of one GPU."""

    def __init__(self, *, broken: bool = False) -> None:
        self._broken, self._calls = broken, 0

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        handle._obj.value = 7
        return int(uuid != b"GPU-b")

    def nvmlDeviceGetUtilizationRates(self, handle: Any, told: Any) -> int:
        told._obj.gpu, told._obj.memory = (30, 90)[self._calls % 2], 5
        self._calls += 1
        return int(self._broken or handle.value != 7)

    def nvmlDeviceGetMemoryInfo(self, handle: Any, told: Any) -> int:
        told._obj.total, told._obj.free, told._obj.used = 80, 35, 45
        return int(handle.value != 7)


@pytest.fixture
def nvml(monkeypatch):
    """Makes the next one that is opened."""

    def make(**how: bool) -> None:
        monkeypatch.setattr(module.ctypes, "CDLL", lambda name: Nvml(**how))

    return make


def test_the_peak_of_resident_memory_begins_anew_at_each_call() -> None:
    resident_peak()
    before = resident_peak()
    held = bytearray(b"x" * (64 * MIB))
    during = resident_peak()
    del held
    resident_peak()
    assert during - before > 60 * MIB
    assert during - resident_peak() > 40 * MIB


def test_a_peak_that_cannot_be_reset_is_told_all_the_same(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmHWM:\t    2048 kB\nVmRSS:\t 1024 kB\n", encoding="utf-8")
    assert resident_peak(status=status, clear=tmp_path / "missing" / "clear_refs") == 2 * MIB


def test_rates_by_hand() -> None:
    told = Telemetry(torch.device("cpu"), Ranks()).take(
        {"sample": 4.0, "logprobs": 1.0, "update": 2.0, "total": 9.0}, sampled=1000, learned=600
    )
    assert told["tokens_per_second/sample"] == 250
    assert told["tokens_per_second/update"] == 200
    assert set(told) == {"tokens_per_second/sample", "tokens_per_second/update", "memory/peak_bytes"}
    told = Telemetry(torch.device("cpu"), Ranks()).take({"sample": 4.0, "update": 0.01}, sampled=1000, learned=0)
    assert set(told) == {"tokens_per_second/sample", "memory/peak_bytes"}, "nothing was learned from"


def test_of_several_ranks_the_largest_memory_and_the_mean_share_are_told() -> None:
    class Three(Ranks):
        def gather(self, value):
            others = [{"peak": 5e12, "share": 0.2, "used": 7.0}, {"peak": 3.0, "share": 0.6, "used": 9.0}]
            return [value, *others]

    told = Telemetry(torch.device("cpu"), Three()).take({"sample": 1.0}, sampled=1, learned=1)
    assert told["memory/peak_bytes"] == 5e12
    assert told["memory/device_bytes"] == 9
    assert told["device_utilisation"] == pytest.approx(0.4)
    assert "tokens_per_second/update" not in told


def test_nvml_is_asked_between_and_averaged(nvml) -> None:
    nvml()
    watch = Watch.open("GPU-b")
    assert watch is not None
    try:
        share, used = watch.take()
        assert used == 45
        asked = watch._library._calls  # when it was opened and now; more where the machine was busy meanwhile
        assert share in [pytest.approx(fmean([(0.3, 0.9)[n % 2] for n in range(made)])) for made in range(2, asked + 1)]
        wait_for(lambda: watch._library._calls > asked, "that the thread asks by itself")
    finally:
        watch.close()


def test_without_library_or_gpu_or_utilisation_there_is_no_watch(nvml, tmp_path: Path) -> None:
    assert Watch.open("GPU-b", library=str(tmp_path / "none.so")) is None
    nvml()
    assert Watch.open("GPU-a") is None
    nvml(broken=True)
    assert Watch.open("GPU-b") is None


def test_each_step_of_a_run_tells_them(tmp_path: Path) -> None:
    run = setting(make_home(tmp_path), "plain")
    assert run.train(tmp_path / "out", engine={"skip_zero_advantage": False}) == 0
    for row in rows(tmp_path / "out" / "metrics.jsonl"):
        metrics, seconds = row["metrics"], row["seconds"]
        tokens = metrics["completions/mean_length"] * 24  # 3 problems, G 8
        assert metrics["tokens_per_second/sample"] == pytest.approx(tokens / seconds["sample"])
        assert metrics["tokens_per_second/update"] == pytest.approx(tokens / seconds["update"])
        assert 50 * MIB < metrics["memory/peak_bytes"] < 20_000 * MIB
        assert "device_utilisation" not in metrics
