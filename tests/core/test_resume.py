"""A run killed anywhere and resumed is, to the bit, the run that nobody killed: weights, metrics, samples, totals; by
every algorithm with a state of its own and every engine on a CPU with the local sampler.

The kill is SIGKILL, by the trainer on itself at a named point (grpo_core/runtime/fault_injection.py), in a process of
its own. Runs with vLLM and DeepSpeed are killed in their own tests.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_core.errors import CheckpointError
from grpo_core.files.checkpoint import MANIFEST, step_folder, verify_checkpoint
from grpo_core.trainer.checkpoints.state import read_state

from .runs import (
    AHEAD_POINTS,
    CUTS,
    ENGINES,
    KILLED,
    KILLS,
    SETTINGS,
    STEP_POINTS,
    STEPS,
    Launched,
    Result,
    flip,
    names_of_steps,
    result,
    rows,
    setting,
    warnings_of,
)

ALL = {**SETTINGS, **ENGINES}
AHEAD = [name for name in ENGINES if name.startswith("ahead")]
TENSORS = ("policy", "policy-optimizer")
QUICK_KILLS = ("plain", "trpo", "ahead")
QUICK_CUTS = ("checkpoint:filled", "checkpoint:renamed", "prune:renamed")
slow = pytest.mark.slow


def assert_worth_comparing(name: str, run: Result) -> None:
    metrics = [row["metrics"] for row in run.metrics]
    assert [row["step"] for row in run.metrics] == list(range(1, STEPS + 1))
    assert all(step["grad_norm"] > 0 for step in metrics)
    if name == "dynamic":
        assert any(step["dynamic_sampling/surplus_groups"] > 0 for step in metrics[:-1])
    if name == "adaptive":
        assert len({step["kl_coef"] for step in metrics}) == STEPS
        assert any("reference_refreshed" in step for step in metrics)
    if name == "critic":
        assert all(step["value_loss"] > 0 for step in metrics)
    if name.startswith("trpo"):
        assert all(0 < step["trpo/kl"] <= 0.01 for step in metrics)
        assert all(step["trpo/surrogate_gain"] > 0 for step in metrics)
    if name in AHEAD:
        ages = [step["sampling/staleness"] for step in metrics]
        assert ages[0] == 0
        assert all(age >= 1 for age in ages[1:])


@pytest.mark.parametrize("name", [name if name in QUICK_KILLS else pytest.param(name, marks=slow) for name in KILLS])
def test_killed_and_resumed(runs_home: Path, tmp_path: Path, whole, name: str) -> None:
    setting(runs_home, name).through(tmp_path / "run", KILLS[name])
    assert_worth_comparing(name, whole(name))
    assert result(tmp_path / "run") == whole(name)


@pytest.mark.parametrize(("name", "point"), [("plain", "updated:5"), ("ahead", "waiting:5")])
def test_killed_two_steps_after_a_checkpoint(runs_home: Path, tmp_path: Path, name: str, point: str) -> None:
    """Of every third step: one whole step and the one that was cut short are done again."""
    run, more = setting(runs_home, name), {"optim": {"steps": 6}, "checkpoints": {"every": 3}}
    assert run.train(tmp_path / "whole", **more) == 0
    assert run.train(tmp_path / "run", fault=point, **more) == KILLED
    assert names_of_steps(tmp_path / "run") == ["step-000000", "step-000003"]
    assert [row["step"] for row in rows(tmp_path / "run/metrics.jsonl")] == [1, 2, 3, 4]
    assert run.train(tmp_path / "run", "--resume", **more) == 0
    assert result(tmp_path / "run") == result(tmp_path / "whole")
    assert [row["step"] for row in rows(tmp_path / "run/superseded/1/metrics.jsonl")] == [4]


@pytest.mark.parametrize("point", [point if point in QUICK_CUTS else pytest.param(point, marks=slow) for point in CUTS])
def test_killed_within_a_checkpoint(runs_home: Path, tmp_path: Path, whole, point: str) -> None:
    """Before its rename the checkpoint is not there and the run resumes from the one before; after it, from the new
    one."""
    out, run = tmp_path / "run", setting(runs_home, "plain")
    # The third checkpoint is that of step 2, and the first that makes another one needless.
    nth = 1 if point in ("prune:renamed", "prune:removed") else 3
    assert run.train(out, fault=f"{point}@{nth}") == KILLED
    step = 2 if CUTS.index(point) >= CUTS.index("checkpoint:renamed") else 1
    assert names_of_steps(out)[-1] == step_folder(step)
    verify_checkpoint(out / "checkpoints" / step_folder(step))
    assert run.train(out, "--resume") == 0
    resumed = [row for row in rows(out / "events.jsonl") if row["kind"] == "resumed"]
    assert [(row["step"], row["skipped"]) for row in resumed] == [(step, [])]
    assert result(out) == whole("plain")
    assert not list((out / "checkpoints").glob(".*"))


def points_of(name: str) -> list[str]:
    """All points of all steps that a run passes; nothing is drawn before step 1."""
    places = [*STEP_POINTS, *(AHEAD_POINTS if name in AHEAD else [])]
    points = [f"{place}:{step}" for place in places for step in range(1, STEPS + 1)]
    return [point for point in points if point not in ("drawing:1", "drawn:1")]


@slow
@pytest.mark.parametrize("name", ALL)
def test_no_more_than_the_step_in_hand_is_lost_at_any_point(runs_home: Path, tmp_path: Path, whole, name: str) -> None:
    """Each setting, killed at each point of each step, alone."""
    run, out = setting(runs_home, name), tmp_path / "run"
    for point in points_of(name):
        assert run.train(out, fault=point) == KILLED, point
        assert run.train(out, "--resume") == 0, point
        (resumed,) = [row for row in rows(out / "events.jsonl") if row["kind"] == "resumed"]
        kind, _, number = point.partition(":")
        in_hand = int(number) - (kind in ("drawing", "drawn"))
        assert in_hand - int(str(resumed["step"])) == 1, point
        assert result(out) == whole(name), point
        shutil.rmtree(out)


def test_another_seed_is_another_run(runs_home: Path, tmp_path: Path, whole) -> None:
    assert setting(runs_home, "plain").train(tmp_path / "run", seed=1) == 0
    assert result(tmp_path / "run").metrics != whole("plain").metrics


def test_killed_before_the_first_checkpoint_there_is_nothing_to_resume(runs_home: Path, tmp_path: Path) -> None:
    run = setting(runs_home, "plain")
    assert run.train(tmp_path / "run", fault="checkpoint:manifest-written") == KILLED
    before = (tmp_path / "run/events.jsonl").read_bytes()
    assert run.train(tmp_path / "run", "--resume") == CheckpointError.exit_status
    assert (tmp_path / "run/events.jsonl").read_bytes() == before


# ---------------------------------------------------------------------- bytes that changed


@pytest.mark.parametrize("all_bytes", [False, pytest.param(True, marks=slow)])
def test_one_flipped_byte_in_any_file_is_seen(stopped: Path, tmp_path: Path, all_bytes: bool) -> None:
    """Each file, the manifest too; its first, middle and last byte, and in the slow form every byte of the manifest."""
    folder = shutil.copytree(stopped / "checkpoints/step-000003", tmp_path / "step-000003")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert {path.name for path in files} == {MANIFEST, "state.json", *(f"{part}.safetensors" for part in TENSORS)}
    for path in files:
        size = path.stat().st_size
        for offset in range(size) if all_bytes and path.name == MANIFEST else (0, size // 2, size - 1):
            flip(path, offset)
            with pytest.raises(CheckpointError, match=re.escape(path.name) if not all_bytes else None):
                verify_checkpoint(folder)
            flip(path, offset)
    verify_checkpoint(folder)


def test_a_bad_checkpoint_is_passed_over_and_named(runs_home: Path, stopped: Path, tmp_path: Path, whole) -> None:
    out = shutil.copytree(stopped, tmp_path / "run")
    flip(out / "checkpoints/step-000003/policy.safetensors", -1)
    status, printed = setting(runs_home, "plain").train_captured(out, "--resume")
    assert status == 0
    assert "passed over checkpoints/step-000003" in printed
    (resumed,) = [row for row in rows(out / "events.jsonl") if row["kind"] == "resumed"]
    assert resumed["step"] == 2
    assert [one["path"] for one in resumed["skipped"]] == ["checkpoints/step-000003"]
    assert result(out) == whole("plain")
    assert (out / "superseded/1/checkpoints/step-000003").is_dir()


def test_without_a_whole_checkpoint_it_never_begins_anew(runs_home: Path, stopped: Path, tmp_path: Path) -> None:
    out, run = shutil.copytree(stopped, tmp_path / "run"), setting(runs_home, "plain")
    for name in names_of_steps(out):
        flip(out / "checkpoints" / name / "state.json", 5)
    before = (out / "metrics.jsonl").read_bytes()
    assert run.train(out, "--resume") == CheckpointError.exit_status
    assert (out / "metrics.jsonl").read_bytes() == before
    steps = [str(out / "checkpoints" / name) for name in names_of_steps(out)[::-1]]
    given = [word for step in steps for word in ("--resume-from", step)]
    assert run.train(tmp_path / "new", *given) == CheckpointError.exit_status
    assert not (tmp_path / "new").exists()
    assert run.train(tmp_path / "attempt", "--spool", *given) == CheckpointError.exit_status
    outcome = json.loads((tmp_path / "attempt/outcome.json").read_text())
    assert (outcome["status"], outcome["code"]) == ("failed", "checkpoint_missing")


# ---------------------------------------------------------------------- no pickle, several ranks, several threads


def test_no_pickle_is_loaded_in_training_and_resuming(runs_home: Path, tmp_path: Path) -> None:
    """Python tells an audit hook of every name that a pickle fetches; in a process of its own, from the import on."""
    code = """
import sys
fetched = []
sys.addaudithook(lambda event, details: fetched.append(details) if event == "pickle.find_class" else None)
import os, pickle
pickle.loads(pickle.dumps(int))
assert len(fetched) == 1, "the hook hears nothing"
from grpo_core.cli.main import main
statuses = [main(sys.argv[1:])]
os.unlink(sys.argv[-1] + "/outcome.json")  # as if it had been killed before its last record
statuses += [main([*sys.argv[1:], "--resume"])]
print(statuses, fetched[1:])
"""
    words = ["train", str(setting(runs_home, "adaptive").write(optim={"steps": 2})), "--out", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["[0, 0] []"], done.stdout + done.stderr


@slow
def test_two_ranks_killed_and_resumed(runs_home: Path, tmp_path: Path) -> None:
    """Both ranks' states are in the checkpoint; two ranks resume to the same bits, one rank resumes with a warning."""
    run = setting(runs_home, "dynamic")
    path = run.write(engine={"devices": 2})

    def both(out: Path, *words: str, fault: str = "") -> int:
        return Launched(path, out, *words, GRPO_FAULT=fault).ended()

    assert both(tmp_path / "whole") == 0
    assert both(tmp_path / "run", fault="updated:3") != 0
    assert len(read_state(tmp_path / "run/checkpoints/step-000002").random) == 2
    alone = shutil.copytree(tmp_path / "run", tmp_path / "alone")
    assert both(tmp_path / "run", "--resume") == 0
    assert result(tmp_path / "run") == result(tmp_path / "whole")
    assert run.train(alone, "--resume") == 0
    assert any("ranks 2" in warning for warning in warnings_of(alone))


@slow
def test_the_same_each_time_with_two_threads_of_torch(runs_home: Path, tmp_path: Path) -> None:
    """Drawing and learning share torch's threads, and who comes first differs from time to time."""
    run, more = setting(runs_home, "ahead"), {"engine": {"threads": 2}, "sampling": {"group_size": 64}}
    runs = []
    for number in range(5):
        assert run.train(tmp_path / str(number), **more) == 0
        runs.append(result(tmp_path / str(number)))
    assert all(each == runs[0] for each in runs)
