"""What a step costs: wall time by its phases on a clock that the test moves, rates by hand, resident memory for real,
NVML by a stand-in for its library, energy by counters as the kernel has them."""

import threading
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import pynvml
import pytest
import torch

from grpo_core.distributed.ranks import Ranks
from grpo_core.runtime import clock, energy
from grpo_core.runtime.clock import Clock, timed
from grpo_core.runtime.energy import Meter, open_meter, own_gpus
from grpo_core.trainer import telemetry
from grpo_core.trainer.telemetry import GpuMonitor, Telemetry, resident_peak
from tests.processes import wait_for

from .runs import rows

MIB = 2**20


class Nvml:
    """Answers as pynvml does, of the GPU `GPU-b` alone."""

    NVMLError = pynvml.NVMLError

    def __init__(self, *, broken: bool = False) -> None:
        self._broken, self.calls = broken, 0

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-b":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:
        if self._broken:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self.calls += 1
        return SimpleNamespace(gpu=(30, 90)[(self.calls - 1) % 2], memory=5)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(total=80, free=35, used=45)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        if self._broken:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self.calls += 1
        return (5000, 7400, 8100)[self.calls - 1]


@pytest.fixture
def gpu(monkeypatch):
    """Makes NVML answer of one GPU; returns the stand-in."""

    def make(**how: bool) -> Nvml:
        library = Nvml(**how)
        for module in (energy, telemetry):
            monkeypatch.setattr(module, "pynvml", library)
        return library

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
    metrics = Telemetry(torch.device("cpu"), Ranks()).take(
        {"sample": 4.0, "logprobs": 1.0, "update": 2.0, "total": 9.0}, sampled=1000, learned=600
    )
    assert metrics["tokens_per_second/sample"] == 250
    assert metrics["tokens_per_second/update"] == 200
    assert set(metrics) == {"tokens_per_second/sample", "tokens_per_second/update", "memory/peak_bytes"}
    metrics = Telemetry(torch.device("cpu"), Ranks()).take({"sample": 4.0, "update": 0.01}, sampled=1000, learned=0)
    assert set(metrics) == {"tokens_per_second/sample", "memory/peak_bytes"}, "nothing was learned from"


def test_of_several_ranks_the_largest_memory_and_the_mean_share_are_told() -> None:
    class Three(Ranks):
        def gather(self, value):
            others = [{"peak": 5e12, "share": 0.2, "used": 7.0}, {"peak": 3.0, "share": 0.6, "used": 9.0}]
            return [value, *others]

    metrics = Telemetry(torch.device("cpu"), Three()).take({"sample": 1.0}, sampled=1, learned=1)
    assert metrics["memory/peak_bytes"] == 5e12
    assert metrics["memory/device_bytes"] == 9
    assert metrics["device_utilisation"] == pytest.approx(0.4)
    assert "tokens_per_second/update" not in metrics


def test_utilisation_is_sampled_between_and_averaged(gpu) -> None:
    library = gpu()
    monitor = GpuMonitor.open("GPU-b")
    assert monitor is not None
    try:
        share, used = monitor.take()
        assert used == 45
        calls = library.calls  # when it was opened and now; more where the machine was busy meanwhile
        assert share in [pytest.approx(fmean([(0.3, 0.9)[n % 2] for n in range(made)])) for made in range(2, calls + 1)]
        wait_for(lambda: library.calls > calls, "that the thread samples by itself")
    finally:
        monitor.close()


def test_without_library_or_gpu_or_utilisation_there_is_no_monitor(gpu) -> None:
    gpu()
    assert GpuMonitor.open("GPU-a") is None
    gpu(broken=True)
    assert GpuMonitor.open("GPU-b") is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_gpu_has_neither_monitor_nor_meter() -> None:
    assert GpuMonitor.open("GPU-b") is None
    assert open_meter(["GPU-b"]) is None


def test_millijoules_of_the_gpus_are_whole_joules_since_the_last_time(gpu) -> None:
    gpu()
    meter = open_meter(["GPU-b"])
    assert meter is not None
    assert "1 GPU," in meter.words
    assert [meter.take(), meter.take()] == [2, 1], "2.4 J, then the 0.4 J left over and 0.7 J"
    assert open_meter(["GPU-b", "GPU-a"]) is None, "a sum without one of them is not the run's"


def test_energy_that_nvml_no_longer_gives_is_a_fault_of_reading(gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu()
    meter = open_meter(["GPU-b"])
    assert meter is not None
    monkeypatch.setattr(energy, "pynvml", Nvml(broken=True))
    with pytest.raises(OSError, match="energy"):
        meter.take()


@pytest.fixture
def pass_time(monkeypatch):
    """Moves the clock; nothing else does."""
    now = [100.0]
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])

    def passes(seconds: float) -> None:
        now[0] += seconds

    return passes


def test_a_phase_inside_another_takes_its_time_away_from_it(pass_time) -> None:
    measured = Clock()
    with measured.running():
        pass_time(1)
        with timed("update"):
            pass_time(2)
            with timed("logprobs"):
                pass_time(4)
            pass_time(8)
        with timed("update"):
            pass_time(16)
    assert measured.take() == {"other": 1, "update": 26, "logprobs": 4, "total": 31}


def test_taking_begins_anew_and_loses_nothing(pass_time) -> None:
    measured = Clock()
    with measured.running(), timed("checkpoint"):
        pass_time(3)
        assert measured.take() == {"other": 0, "checkpoint": 3, "total": 3}
        pass_time(5)
    pass_time(7)
    assert measured.take() == {"checkpoint": 5, "other": 7, "total": 12}


def test_a_clock_inside_another_gives_it_what_it_measured(pass_time) -> None:
    outer, inner = Clock(), Clock()
    with outer.running():
        pass_time(1)
        with timed("update"), inner.running():
            pass_time(2)
            with timed("sample"):
                pass_time(4)
        with inner.running(), timed("sample"):
            pass_time(8)
        assert inner.take() == {"other": 2, "sample": 12, "total": 14}
    assert outer.take() == {"other": 1, "update": 2, "sample": 12, "total": 15}


def test_a_phase_ends_also_where_something_is_raised(pass_time) -> None:
    measured = Clock()
    with measured.running():
        with pytest.raises(ZeroDivisionError), timed("reward"):
            pass_time(2 / (1 - 1))
        pass_time(1)
    assert measured.take() == {"other": 1, "reward": 0, "total": 1}


def test_another_thread_has_a_clock_of_its_own(pass_time) -> None:
    measured = Clock()

    def other() -> None:
        with timed("sample"):  # none runs here
            pass_time(2)

    with measured.running(), timed("waiting"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert measured.take() == {"other": 0, "waiting": 2, "total": 2}


def test_the_device_is_waited_for_where_a_phase_begins_and_ends(pass_time) -> None:
    measured = Clock(settle=lambda: pass_time(10))  # work that was still under way
    with measured.running(), timed("update"):
        pass_time(1)
    assert measured.take()["update"] == 11


def test_each_step_of_a_run_tells_its_phases_rates_and_memory(finished: Callable[[str], Path]) -> None:
    for row in rows(finished("adaptive") / "metrics.jsonl"):
        metrics, seconds = row["metrics"], row["seconds"]
        total = seconds.pop("total")
        assert set(seconds) == {"sample", "reward", "update", "logprobs", "checkpoint", "other"}
        assert sum(seconds.values()) == pytest.approx(total)
        assert min(seconds.values()) > 0
        tokens = metrics["completions/mean_length"] * 24  # 3 problems, G 8, and of a KL term every row is learned from
        assert metrics["tokens_per_second/sample"] == pytest.approx(tokens / seconds["sample"])
        assert metrics["tokens_per_second/update"] == pytest.approx(tokens / (seconds["update"] + seconds["logprobs"]))
        assert 50 * MIB < metrics["memory/peak_bytes"] < 20_000 * MIB
        assert "device_utilisation" not in metrics


def package(root: Path, number: int, counter: int, *, name: str = "package", wraps: int = 1_000_000_000) -> Path:
    folder = root / f"intel-rapl:{number}"
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}-{number}\n")
    (folder / "max_energy_range_uj").write_text(f"{wraps}\n")
    (folder / "energy_uj").write_text(f"{counter}\n")
    return folder


def opened(root: Path) -> Meter:
    meter = open_meter([], root=root)
    assert meter is not None
    return meter


def test_joules_of_all_packages_are_summed_and_parts_carried_on(tmp_path: Path) -> None:
    first, second = package(tmp_path, 0, 5_000_000), package(tmp_path, 1, 0)
    core = package(tmp_path / "intel-rapl:0", 0, 0, name="core")
    core.rename(tmp_path / "intel-rapl:0:0")
    meter = opened(tmp_path)
    assert "2 processor packages" in meter.words, "what is inside a package is in its counter"
    assert meter.take() == 0
    (first / "energy_uj").write_text("7400000")
    (second / "energy_uj").write_text("400000")
    assert meter.take() == 2, "2.4 J and 0.4 J"
    (second / "energy_uj").write_text("600000")
    assert meter.take() == 1, "the 0.8 J left over and 0.2 J"


def test_a_counter_that_began_anew_twice_between_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_core.runtime.energy._BETWEEN_READS", 0.01)
    folder = package(tmp_path, 0, 0, wraps=10_000_000)
    meter = opened(tmp_path)
    for joules in (6, 12, 18, 24):
        partial, counter = folder / "next", joules % 10 * 1_000_000
        partial.write_text(str(counter))
        partial.replace(folder / "energy_uj")
        wait_for(lambda counter=counter: meter._last == [counter], "that the counter is read")
    assert meter.take() == 24, "the counter itself says 4 J"


def test_without_a_counter_there_is_no_meter(tmp_path: Path) -> None:
    assert open_meter([], root=tmp_path / "none") is None
    package(tmp_path, 0, 0, name="psys")
    assert open_meter([], root=tmp_path) is None
    folder = package(tmp_path, 1, 0)
    (folder / "energy_uj").unlink()
    (folder / "energy_uj").mkdir()  # as a file that may not be read: an OSError
    assert open_meter([], root=tmp_path) is None


def test_gpus_of_other_machines_are_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_gpus(["a", "b"], world=1) == ["a"]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert own_gpus(["a", "b"], world=2) == ["a", "b"]
    assert own_gpus(["a"], world=2) is None
    assert own_gpus(["a", "b"], world=4) is None
    assert own_gpus([], world=2) is None


def test_a_counter_that_tells_no_number_is_a_fault_of_reading(tmp_path: Path) -> None:
    """As a trainer takes it: it continues, and says that energy is no longer measured."""
    folder = package(tmp_path, 0, 5_000_000)
    meter = opened(tmp_path)
    (folder / "energy_uj").write_text("\n")
    with pytest.raises(OSError, match="number"):
        meter.take()
