"""A run killed anywhere and resumed is, to the bit, the run that nobody killed, by every way of the engine on a CPU
with the local sampler: packed, shared and padded micro-batches, checkpointed gradients, waves, drawing ahead.

vLLM's and DeepSpeed's runs are killed in their own tests.
"""

import shutil
from pathlib import Path

import pytest

from grpo_core.checkpoint_files import step_folder
from grpo_core.checkpoints.state import read_state

from .runs import AHEAD_POINTS, ENGINES, KILLED, SETTINGS, STEP_POINTS, STEPS, names_of_steps, result, rows, setting

AHEAD = [name for name in ENGINES if name.startswith("ahead")]


def points_of(name: str) -> list[str]:
    """All points of all steps that a run passes, in which it can be killed."""
    points = [f"{place}:{step}" for place in STEP_POINTS for step in range(1, STEPS + 1)]
    if name in AHEAD:
        ahead = [f"{place}:{step}" for place in AHEAD_POINTS for step in range(1, STEPS + 1)]
        points += [point for point in ahead if point not in ("drawing:1", "drawn:1")]  # nothing is before step 1
    return points


def lost(point: str, out: Path) -> int:
    """Steps that a run which died at `point` and was resumed once had begun and does again."""
    place, _, number = point.partition(":")
    in_hand = int(number) - (place in ("drawing", "drawn"))
    (resumed,) = [row for row in rows(out / "events.jsonl") if row["kind"] == "resumed"]
    return in_hand - int(str(resumed["step"]))


def test_the_runs_compared_are_not_trivial(runs_home: Path, whole) -> None:
    for name in ENGINES:
        metrics = whole(name).metrics
        assert [row["step"] for row in metrics] == list(range(1, STEPS + 1))
        assert all(row["metrics"]["grad_norm"] > 0 for row in metrics)
    # Drawing ahead is another run; the other ways give the same numbers but for rounding.
    assert whole("ahead").weights not in {whole(name).weights for name in SETTINGS}
    for name in AHEAD:
        ages = [row["metrics"]["sampling/staleness"] for row in whole(name).metrics]
        assert ages[0] == 0
        assert all(age >= 1 for age in ages[1:])


@pytest.mark.parametrize("name", ENGINES)
def test_killed_in_every_step_and_resumed(runs_home: Path, tmp_path: Path, whole, name: str) -> None:
    """One run, killed five times: in each step once, each time elsewhere in it, and once inside a checkpoint."""
    first = list(ENGINES).index(name)
    points = [f"{STEP_POINTS[(step + first) % 5]}:{step}" for step in range(1, STEPS + 1)]
    points.insert(2, "checkpoint:policy-optimizer.safetensors-written")
    assert setting(runs_home, name).through(tmp_path / "run", points) == points
    assert result(tmp_path / "run") == whole(name)


@pytest.mark.parametrize("name", AHEAD)
def test_killed_while_drawing_ahead(runs_home: Path, tmp_path: Path, whole, name: str) -> None:
    """At the beginning and at the end of drawing, in its thread, and where the trainer waits for it."""
    points = ["drawing:2", "drawn:2", "waiting:1", "waiting:2", "drawn:4", "drawing:4", "waiting:4"]
    assert setting(runs_home, name).through(tmp_path / "run", points) == points
    assert result(tmp_path / "run") == whole(name)


@pytest.mark.parametrize("point", ["drawing:3", "drawn:4", "waiting:3", "updated:2", "sampled:4"])
def test_no_more_than_the_step_in_hand_is_lost(runs_home: Path, tmp_path: Path, whole, point: str) -> None:
    out = tmp_path / "run"
    assert setting(runs_home, "ahead").train(out, fault=point) == KILLED
    assert setting(runs_home, "ahead").train(out, "--resume") == 0
    assert lost(point, out) == 1
    assert result(out) == whole("ahead")


def test_a_checkpoint_holds_the_groups_that_are_drawn_ahead(runs_home: Path, tmp_path: Path) -> None:
    """Without them the step after it would be sampled from another policy."""
    run = setting(runs_home, "ahead-dynamic")
    assert run.train(tmp_path / "run", checkpoints={"every": 1, "keep": 9}) == 0
    for step in range(STEPS + 1):
        held = read_state(tmp_path / "run/checkpoints" / step_folder(step)).draw
        if step in (0, STEPS):  # nothing is drawn before the first step, nor for one after the last
            assert held.ahead is None
            continue
        assert held.ahead is not None
        fresh = held.ahead.groups[held.ahead.older :]
        assert {group.sampled_at for group in fresh} == {step}
        assert len(held.ahead.kept) == 3
        assert len(held.ahead.kept) + len(held.ahead.discarded) + held.ahead.surplus == len(held.ahead.groups)


def test_killed_long_after_a_checkpoint(runs_home: Path, tmp_path: Path) -> None:
    """Of every third step: one whole step and the one that was cut short are done again."""
    run, more = setting(runs_home, "ahead"), {"optim": {"steps": 6}, "checkpoints": {"every": 3}}
    assert run.train(tmp_path / "whole", **more) == 0
    assert run.train(tmp_path / "run", fault="waiting:5", **more) == KILLED
    assert names_of_steps(tmp_path / "run") == ["step-000000", "step-000003"]
    assert run.train(tmp_path / "run", "--resume", **more) == 0
    assert result(tmp_path / "run") == result(tmp_path / "whole")


def test_the_same_each_time_with_two_threads_of_torch(runs_home: Path, tmp_path: Path) -> None:
    """Drawing and learning share torch's threads, and who comes first differs from time to time."""
    run, more = setting(runs_home, "ahead"), {"engine": {"threads": 2}, "sampling": {"group_size": 64}}
    found = []
    for number in range(5):
        assert run.train(tmp_path / str(number), **more) == 0
        found.append(result(tmp_path / str(number)))
    assert all(one == found[0] for one in found)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ENGINES)
def test_every_point_of_every_step_of_every_engine(runs_home: Path, tmp_path: Path, whole, name: str) -> None:
    """The exhaustive product: each way, killed at each point of each step, alone."""
    run, out = setting(runs_home, name), tmp_path / "run"
    for point in points_of(name):
        assert run.train(out, fault=point) == KILLED, point
        assert run.train(out, "--resume") == 0, point
        assert lost(point, out) == 1, point
        assert result(out) == whole(name), point
        shutil.rmtree(out)
