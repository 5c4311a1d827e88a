"""A run killed anywhere and resumed is, to the bit, the run that nobody killed: weights, metrics, samples, totals.

The kill is SIGKILL, by the trainer on itself at a named point (grpo_core/faults.py), in a process of its own.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_core.checkpoint_files import MANIFEST, step_folder, verify_checkpoint
from grpo_core.checkpoints.state import read_state
from grpo_core.errors import CheckpointError

from .runs import (
    AHEAD_POINTS,
    KILLED,
    SETTINGS,
    STEP_POINTS,
    STEPS,
    Setting,
    flip,
    names_of_steps,
    result,
    rows,
    setting,
)

TENSORS = ("policy", "policy-optimizer")
CUT_POINTS = (
    "checkpoint:begun",
    *(f"checkpoint:{name}-{done}" for name in (*(f"{part}.safetensors" for part in TENSORS), "state.json")
      for done in ("written", "synced")),
    "checkpoint:filled",
    "checkpoint:manifest-written",
    "checkpoint:synced",
    "checkpoint:renamed",
    "checkpoint:parent-synced",
    "checkpoint:recorded",
    "prune:renamed",
    "prune:removed",
    "prune:recorded",
)  # fmt: skip
"""In the order in which writing one checkpoint passes them."""


# ---------------------------------------------------------------------- killed, resumed, equal


def test_the_runs_compared_are_not_trivial(runs_home: Path, whole) -> None:
    plain = whole("plain").metrics
    assert [row["step"] for row in plain] == list(range(1, STEPS + 1))
    assert all(row["metrics"]["grad_norm"] > 0 for row in plain)
    assert len({name: whole(name).weights for name in SETTINGS}.values()) == len(SETTINGS)
    dynamic = [row["metrics"] for row in whole("dynamic").metrics]
    assert any(metrics["dynamic_sampling/surplus_groups"] > 0 for metrics in dynamic[:-1])
    assert len({row["metrics"]["kl_coef"] for row in whole("adaptive").metrics}) == STEPS
    assert any("reference_refreshed" in row["metrics"] for row in whole("adaptive").metrics)
    assert all(row["metrics"]["value_loss"] > 0 for row in whole("critic").metrics)


@pytest.mark.parametrize("name", SETTINGS)
def test_killed_in_every_step_and_resumed(runs_home: Path, tmp_path: Path, whole, name: str) -> None:
    """One run, killed five times: in each step once, each time elsewhere in it, and once inside a checkpoint."""
    first = list(SETTINGS).index(name)  # so that each place meets each step in one of the settings
    points = [f"{STEP_POINTS[(step + first) % 5]}:{step}" for step in range(1, STEPS + 1)]
    points.insert(2, "checkpoint:policy-optimizer.safetensors-written")
    met = setting(runs_home, name).through(tmp_path / "run", points)
    assert met == points
    assert result(tmp_path / "run") == whole(name)


def test_killed_two_steps_after_a_checkpoint(runs_home: Path, tmp_path: Path) -> None:
    """Of every third step: one whole step and the one that was cut short are done again."""
    run, more = setting(runs_home, "plain"), {"optim": {"steps": 6}, "checkpoints": {"every": 3}}
    assert run.train(tmp_path / "whole", **more) == 0
    assert run.train(tmp_path / "run", fault="updated:5", **more) == KILLED
    assert names_of_steps(tmp_path / "run") == ["step-000000", "step-000003"]
    assert [row["step"] for row in rows(tmp_path / "run/metrics.jsonl")] == [1, 2, 3, 4]
    assert run.train(tmp_path / "run", "--resume", **more) == 0
    assert result(tmp_path / "run") == result(tmp_path / "whole")
    assert [row["step"] for row in rows(tmp_path / "run/superseded/1/metrics.jsonl")] == [4]


def test_killed_where_the_cost_decides_when_checkpoints_are_cut(runs_home: Path, tmp_path: Path, whole) -> None:
    """Which steps have one is the clock's word; after the first step there is one in any case."""
    run, more = setting(runs_home, "plain"), {"checkpoints": {"every": None}}
    assert run.train(tmp_path / "run", fault="updated:4", **more) == KILLED
    assert "checkpoints/step-000001" in [row.get("path") for row in rows(tmp_path / "run/events.jsonl")]
    assert run.train(tmp_path / "run", "--resume", **more) == 0
    assert result(tmp_path / "run") == whole("plain")


@pytest.mark.slow
@pytest.mark.parametrize("place", STEP_POINTS)
def test_killed_at_one_place_of_every_step(runs_home: Path, tmp_path: Path, whole, place: str) -> None:
    points = [f"{place}:{step}" for step in range(1, STEPS + 1)]
    assert setting(runs_home, "plain").through(tmp_path / "run", points) == points
    assert result(tmp_path / "run") == whole("plain")


def test_killed_at_every_point_of_a_checkpoint(runs_home: Path, tmp_path: Path, whole) -> None:
    """Killed before its rename, a checkpoint is not there and the one before is gone on from; after it, the new one."""
    out = tmp_path / "run"
    for point in CUT_POINTS:
        shutil.rmtree(out, ignore_errors=True)
        run = setting(runs_home, "plain")
        # The third checkpoint is that of step 2, and the first that makes another one needless.
        nth = 1 if point in ("prune:renamed", "prune:removed") else 3
        assert run.train(out, fault=f"{point}@{nth}") == KILLED, point
        renamed = CUT_POINTS.index(point) >= CUT_POINTS.index("checkpoint:renamed")
        newest = names_of_steps(out)[-1]
        assert newest == step_folder(2 if renamed else 1), point
        verify_checkpoint(out / "checkpoints" / newest)
        assert run.train(out, "--resume") == 0, point
        resumed = [row for row in rows(out / "events.jsonl") if row["kind"] == "resumed"]
        assert [(row["step"], row["skipped"]) for row in resumed] == [(2 if renamed else 1, [])], point
        assert result(out) == whole("plain"), point
        assert not list((out / "checkpoints").glob(".*")), point


def test_every_point_of_the_code_is_among_those_killed_at() -> None:
    root = Path(__file__).parents[2] / "grpo_core"
    found = set()
    for path in root.rglob("*.py"):
        if path.is_relative_to(root / "rollout/vllm"):  # tests/core/sampler_vllm kills there
            continue
        found |= set(re.findall(r'^\s*fault\(f?"([^"]+)"\)', path.read_text(encoding="utf-8"), re.MULTILINE))
    parts = {f"checkpoint:{{path.name}}-{done}" for done in ("written", "synced")}
    named = {point for point in CUT_POINTS if ".safetensors" not in point and "state.json" not in point}
    replacing = {"replace:aside", "replace:renamed"}  # of a folder that is there: tests/core/test_cold_start.py
    assert found == named | parts | replacing | {f"{place}:{{step}}" for place in (*STEP_POINTS, *AHEAD_POINTS)}


def test_killed_before_the_first_checkpoint_there_is_nothing_to_resume(runs_home: Path, tmp_path: Path) -> None:
    run = setting(runs_home, "plain")
    assert run.train(tmp_path / "run", fault="checkpoint:manifest-written") == KILLED
    before = (tmp_path / "run/events.jsonl").read_bytes()
    status, said = run.told(tmp_path / "run", "--resume")
    assert status == 7
    assert "has no checkpoint to go on from" in said
    assert "leave --resume out" in said
    assert (tmp_path / "run/events.jsonl").read_bytes() == before


# ---------------------------------------------------------------------- bytes that changed


def test_one_flipped_byte_in_any_file_is_seen(stopped: Path, tmp_path: Path) -> None:
    """Each file, the manifest too; its first, middle and last byte."""
    folder = shutil.copytree(stopped / "checkpoints/step-000003", tmp_path / "step-000003")
    verify_checkpoint(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert {path.name for path in files} == {MANIFEST, "state.json", *(f"{part}.safetensors" for part in TENSORS)}
    for path in files:
        for place in (0, path.stat().st_size // 2, -1):
            flip(path, place)
            with pytest.raises(CheckpointError, match=re.escape(path.name)):
                verify_checkpoint(folder)
            flip(path, place)
    verify_checkpoint(folder)


@pytest.mark.slow
def test_every_flipped_byte_of_the_manifest_is_seen(stopped: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stopped / "checkpoints/step-000003", tmp_path / "step-000003")
    for place in range((folder / MANIFEST).stat().st_size):
        flip(folder / MANIFEST, place)
        with pytest.raises(CheckpointError):
            verify_checkpoint(folder)
        flip(folder / MANIFEST, place)


def test_a_bad_checkpoint_is_passed_over_and_that_is_said(
    runs_home: Path, stopped: Path, tmp_path: Path, whole
) -> None:
    out = shutil.copytree(stopped, tmp_path / "run")
    flip(out / "checkpoints/step-000003/policy.safetensors", -1)
    status, said = setting(runs_home, "plain").told(out, "--resume")
    assert status == 0
    assert "passed over checkpoints/step-000003: " in said
    assert "policy.safetensors was changed" in said
    assert "goes on from checkpoints/step-000002, after step 2" in said
    (resumed,) = [row for row in rows(out / "events.jsonl") if row["kind"] == "resumed"]
    assert resumed["step"] == 2
    assert [one["path"] for one in resumed["skipped"]] == ["checkpoints/step-000003"]
    assert result(out) == whole("plain")
    assert (out / "superseded/1/checkpoints/step-000003").is_dir()


def test_without_a_whole_checkpoint_it_never_begins_anew(runs_home: Path, stopped: Path, tmp_path: Path) -> None:
    out = shutil.copytree(stopped, tmp_path / "run")
    for name in names_of_steps(out):
        flip(out / "checkpoints" / name / "state.json", 5)
    before = (out / "metrics.jsonl").read_bytes()
    status, said = setting(runs_home, "plain").told(out, "--resume")
    assert status == 7
    assert "there is no checkpoint to go on from: " in said
    assert (out / "metrics.jsonl").read_bytes() == before
    steps = [str(out / "checkpoints" / name) for name in names_of_steps(out)[::-1]]
    given = [word for step in steps for word in ("--resume-from", step)]
    status, said = setting(runs_home, "plain").told(tmp_path / "new", *given)
    assert status == 7
    assert not (tmp_path / "new").exists()
    assert setting(runs_home, "plain").train(tmp_path / "attempt", "--spool", *given) == 7
    outcome = json.loads((tmp_path / "attempt/outcome.json").read_text())
    assert (outcome["status"], outcome["code"]) == ("failed", "checkpoint_missing")


# ---------------------------------------------------------------------- no pickle, several ranks


def test_no_pickle_is_loaded_in_training_and_resuming(runs_home: Path, tmp_path: Path) -> None:
    """Python tells an audit hook of every name that a pickle fetches; in a process of its own, from the import on."""
    out, path = tmp_path / "run", setting(runs_home, "adaptive").write()
    code = """
import sys
found = []
sys.addaudithook(lambda event, details: found.append(details) if event == "pickle.find_class" else None)
import pickle
pickle.loads(pickle.dumps(int))
assert len(found) == 1, "the hook hears nothing"
from grpo_core.cli import main
status = main(sys.argv[1:])
print("status", status, "pickles", len(found) - 1, found[1:3])
"""
    for more in ([], ["--resume"]):
        words = ["train", str(path), "--out", str(out), *more]
        if more:
            (out / "outcome.json").unlink()  # as if it had been killed before its last word
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
        assert done.stdout.splitlines()[-1].startswith("status 0 pickles 0"), done.stdout + done.stderr


@pytest.mark.slow
def test_two_ranks_killed_and_resumed(runs_home: Path, tmp_path: Path) -> None:
    """Both ranks' states are in the checkpoint; two ranks go on to the same bits, one rank goes on and says so."""
    run = setting(runs_home, "dynamic")
    path = run.write(engine={"devices": 2})

    def both(out: Path, *words: str, fault: str = "") -> int:
        command = [sys.executable, "-m", "grpo_core.cli", "train", str(path), "--out", str(out), *words]
        return subprocess.run(command, env=os.environ | {"GRPO_FAULT": fault}, check=False).returncode

    assert both(tmp_path / "whole") == 0
    assert both(tmp_path / "run", fault="updated:3") != 0
    assert len(read_state(tmp_path / "run/checkpoints/step-000002").random) == 2
    one = shutil.copytree(tmp_path / "run", tmp_path / "one")
    assert both(tmp_path / "run", "--resume") == 0
    assert result(tmp_path / "run") == result(tmp_path / "whole")
    assert run.train(one, "--resume") == 0
    warnings = [row["message"] for row in rows(one / "events.jsonl") if row.get("type") == "warning"]
    assert "the checkpoint was written with ranks 2; it goes on with 1: not bit by bit" in warnings


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SETTINGS)
def test_every_point_of_every_step_of_every_setting(runs_home: Path, tmp_path: Path, whole, name: str) -> None:
    """The exhaustive product: each setting, killed at each point of each step and each point of each checkpoint."""
    run = setting(runs_home, name)
    tensors = load_tensor_names(run, tmp_path / "names")
    cuts = [point for point in CUT_POINTS if ".safetensors" not in point]
    cuts += [f"checkpoint:{part}.safetensors-{done}" for part in tensors for done in ("written", "synced")]
    points = [f"{place}:{step}" for place in STEP_POINTS for step in range(1, STEPS + 1)]
    points += [f"{point}@{nth}" for point in cuts for nth in range(1, STEPS + 2)]
    for number, point in enumerate(points):
        out = tmp_path / str(number)
        status = run.train(out, fault=point)
        assert status in (0, KILLED), point
        assert status == KILLED or point.startswith("prune:"), point
        if status == KILLED:
            if not names_of_steps(out):  # nothing to resume yet
                shutil.rmtree(out)
            assert run.train(out, *(["--resume"] if out.exists() else [])) == 0, point
        assert result(out) == whole(name), point
        shutil.rmtree(out)


def load_tensor_names(run: Setting, out: Path) -> list[str]:
    assert run.train(out) == 0
    return sorted(path.stem for path in (out / "checkpoints" / step_folder(STEPS)).glob("*.safetensors"))
