"""Meters by the counters that they read: files as the kernel has them."""

from pathlib import Path

import pytest

from grpo_core.energy import Meter, open_meter, own_gpus
from grpo_core.metrics import ENERGY, Totals
from tests.processes import wait_for


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


def test_a_counter_that_began_anew(tmp_path: Path) -> None:
    folder = package(tmp_path, 0, 9_000_000, wraps=10_000_000)
    meter = opened(tmp_path)
    (folder / "energy_uj").write_text("2000000")
    assert meter.take() == 3


def test_a_counter_that_began_anew_twice_between_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_core.energy._BETWEEN_READS", 0.01)
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
    assert open_meter(["GPU-0"], root=tmp_path, library="libthere-is-none.so.1") is None
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


def test_totals_tell_energy_only_where_it_was_measured() -> None:
    totals = Totals()
    assert ENERGY not in totals.as_dict()
    totals.sums[ENERGY] += 0
    assert totals.as_dict()[ENERGY] == 0


def test_a_counter_that_tells_no_number_is_a_fault_of_reading(tmp_path: Path) -> None:
    """As a trainer takes it: it goes on, and says that energy is no longer measured."""
    folder = package(tmp_path, 0, 5_000_000)
    meter = opened(tmp_path)
    (folder / "energy_uj").write_text("\n")
    with pytest.raises(OSError, match="number"):
        meter.take()
