"""Where a run may resume: in its own directory, in another one, with more steps; and where it must not."""

import fcntl
import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from grpo_core.config.run import RunConfig
from grpo_core.errors import CheckpointError, CheckpointMissing, ConfigError, RunDirError
from grpo_core.files.run_folder import RunDir
from grpo_core.records.types import Manifest
from grpo_core.trainer.checkpoints.resume import choose_from, choose_in, not_bit_by_bit
from grpo_core.trainer.checkpoints.state import read_state
from tests.tables import cases

from .runs import (
    KILLED,
    STEPS,
    Setting,
    names_of_steps,
    result,
    rows,
    setting,
    spooled,
    state_of,
    tree,
    write_state,
)

NEWEST = "checkpoints/step-000003"
ZEROS = bytes(300)


@pytest.fixture
def plain(runs_home: Path) -> Setting:
    return setting(runs_home, "plain")


@pytest.fixture
def out(stopped: Path, tmp_path: Path) -> Path:
    """A copy of the run that died in its last step."""
    return shutil.copytree(stopped, tmp_path / "run")


def config_of(run: Setting, **more: object) -> RunConfig:
    return RunConfig.from_file(run.write(**more))


def resumed(out: Path) -> dict[str, object]:
    (record,) = [row for row in rows(out / "events.jsonl") if row["kind"] == "resumed"]
    return record


def test_the_directory_reads_as_one_run_and_nothing_is_lost(plain: Setting, out: Path, whole) -> None:
    """Also of what a kill inside a write and a power loss leave: a torn line; zeros with and without an end of line."""
    left = {
        "metrics.jsonl": b'{"seq": 99, "torn',
        "events.jsonl": ZEROS + b"\n",
        "evals/before.jsonl": ZEROS + b"\n[]\n{}\n" + ZEROS,
    }
    before = (out / "events.jsonl").read_bytes()
    for name, content in left.items():
        with (out / name).open("ab") as handle:
            handle.write(content)
    (out / "checkpoints/.step-000004.tmp").mkdir()
    assert plain.train(out, "--resume") == 0
    assert result(out) == whole("plain")
    for name, content in left.items():
        assert (out / "superseded/1" / name).read_bytes().endswith(content), name
    moved = (out / "superseded/1/events.jsonl").read_bytes().removesuffix(left["events.jsonl"])
    assert before.endswith(moved)
    assert (out / "events.jsonl").read_bytes().startswith(before.removesuffix(moved))
    for name in ("events.jsonl", "metrics.jsonl", "samples/step-000004.jsonl"):
        seqs = [json.loads(line)["seq"] for line in (out / name).read_text().splitlines()]
        assert seqs == sorted(set(seqs)), name
    assert not list((out / "checkpoints").glob(".*.tmp"))
    kept = [row["path"] for row in rows(out / "events.jsonl") if row["kind"] == "checkpoint"]
    assert kept == [f"checkpoints/step-{step:06d}" for step in range(STEPS + 1)] + ["checkpoints/final"]
    removed = [row["path"] for row in rows(out / "events.jsonl") if row["kind"] == "checkpoint_removed"]
    assert set(kept) - set(removed) == {f"checkpoints/{path.name}" for path in (out / "checkpoints").iterdir()}


def test_an_attempt_in_a_folder_of_its_own(plain: Setting, stopped: Path, tmp_path: Path, whole) -> None:
    """As a worker starts it: the newest is not there, the next is taken; records count from 1 and begin at its step."""
    out = tmp_path / "attempt-2"
    given = ["--resume-from", str(tmp_path / "nowhere"), "--resume-from", str(stopped / NEWEST)]
    assert plain.train(out, "--spool", *given) == 0
    envelopes = spooled(out)
    assert [row["seq"] for row in envelopes] == list(range(1, len(envelopes) + 1))
    kinds = [row["record"]["kind"] for row in envelopes]
    assert kinds[kinds.index("manifest") + 1] == "resumed"
    record = envelopes[kinds.index("resumed")]["record"]
    assert (record["step"], record["checkpoint"]) == (3, NEWEST)
    assert [row["path"].rpartition("/")[2] for row in record["skipped"]] == ["nowhere"]
    got, wanted = result(out), whole("plain")
    assert (got.weights, got.totals, got.metrics) == (wanted.weights, wanted.totals, wanted.metrics[3:])
    assert got.evaluations == {"after.jsonl": wanted.evaluations["after.jsonl"]}


def test_extending_a_finished_run(plain: Setting, tmp_path: Path, whole) -> None:
    out, short = tmp_path / "run", {"optim": {"steps": STEPS - 1}}
    assert plain.train(out, **short) == 0
    assert plain.train(out, "--resume", **short) == RunDirError.exit_status
    assert plain.train(out, "--resume") == 0
    assert result(out) == whole("plain")
    assert json.loads((out / "superseded/1/outcome.json").read_text())["steps_planned"] == STEPS - 1


@pytest.mark.parametrize(("more", "field"), cases("trainer/resume_refused", "more", "field"))
def test_a_config_that_would_be_another_run_is_refused(plain: Setting, out: Path, more, field: str) -> None:
    if not more:
        state = state_of(out / NEWEST)
        state["config"]["algorithm"]["twist"] = 0.5
        write_state(out / NEWEST, state)
    before = tree(out)
    with pytest.raises(ConfigError) as caught:
        choose_in(RunDir.reopen(out), config_of(plain, **(more or {})))
    assert [problem.path for problem in caught.value.problems] == [field]
    assert tree(out) == before


def test_a_field_added_since_has_its_default(plain: Setting, out: Path, whole) -> None:
    """A checkpoint of before optim.method resumes, to the bit, and not with another value of it."""
    for name in names_of_steps(out):
        state = state_of(out / "checkpoints" / name)
        del state["config"]["optim"]["method"], state["config"]["optim"]["trpo"], state["config"]["data"]["hub"]
        write_state(out / "checkpoints" / name, state)
    changed = {"optim": {"method": "trpo"}, "algorithm": {"loss": "unclipped"}}
    with pytest.raises(ConfigError) as caught:
        choose_from([out / NEWEST], config_of(plain, **changed))
    assert [problem.path for problem in caught.value.problems] == ["algorithm.loss", "optim.method"]
    status, printed = plain.train_captured(out, "--resume")
    assert status == 0, printed
    assert result(out) == whole("plain")


def test_what_changes_nothing_trained_may_change(plain: Setting, out: Path, whole) -> None:
    more = {"name": "other", "engine": {"micro_batch_tokens": 4096}, "checkpoints": {"keep": 5}}
    before = (out / "config.yaml").read_bytes()
    assert plain.train(out, "--resume", **more) == 0
    assert result(out).weights == whole("plain").weights
    assert (out / "superseded/1/config.yaml").read_bytes() == before
    assert RunConfig.from_file(out / "config.yaml").name == "other"


def test_a_best_checkpoint_that_is_gone_is_not_named_again(plain: Setting, out: Path, tmp_path: Path) -> None:
    """As after a step back over a damaged newest one, which was the best and for which the one before was removed."""
    for name in names_of_steps(out):
        best = {"step": 1, "reward": 100.0}  # which no later one is above
        checkpoint = out / "checkpoints" / name
        write_state(checkpoint, state_of(checkpoint) | {"best": best, "recent": [0.1] * 10})
    new = tmp_path / "new"
    assert plain.train(new, "--resume-from", str(out / NEWEST)) == 0
    assert plain.train(out, "--resume") == 0
    found = {}
    for folder in (out, new):
        last = next(row for row in rows(folder / "events.jsonl") if row.get("path") == "checkpoints/step-000004")
        found[folder.name] = resumed(folder)["best"], last["best"], state_of(folder / last["path"])["best"]["step"]
    # In another folder the best may well lie where the run came from.
    assert found == {"run": (None, True, 4), "new": (1, False, 1)}


def test_plain_weights_are_passed_over(plain: Setting, out: Path, tmp_path: Path) -> None:
    assert plain.train(out, "--resume") == 0
    final, step = out / "checkpoints/final", out / NEWEST
    with pytest.raises(CheckpointMissing, match="plain weights"):
        choose_from([final], config_of(plain))
    assert choose_from([final, step], config_of(plain)).folder == step


def change(home: Path, what: str) -> None:
    """Another letter in each problem, or another number in the weights or settings."""
    if what == "the base model's weights":
        weights = load_file(home / "base/model.safetensors")
        weights["lm_head.weight"][0, 0] += 1
        save_file(weights, home / "base/model.safetensors", metadata={"format": "pt"})
    elif what == "the model's settings":
        settings = json.loads((home / "base/config.json").read_text())
        (home / "base/config.json").write_text(json.dumps({**settings, "rms_norm_eps": 2 * settings["rms_norm_eps"]}))
    else:
        path = home / ("train.jsonl" if what == "the training problems" else "heldout.jsonl")
        path.write_text(path.read_text().replace("say ", "Say "))


INPUTS = ("the training problems", "the held-out problems", "the base model's weights", "the model's settings")


@pytest.mark.parametrize(("what", "done"), [*((what, False) for what in INPUTS), (INPUTS[0], True)])
def test_inputs_that_changed_are_refused_and_nothing_is_touched(runs_home, out, tmp_path, what, done):
    run = setting(shutil.copytree(runs_home, tmp_path / "home"), "plain")
    if done:
        assert run.train(out, "--resume") == 0
    change(run.home, what)
    before = tree(out)
    # Another length and another config.yaml, which a resume that is let continue would write.
    status, printed = run.train_captured(out, "--resume", optim={"steps": STEPS + 1}, name="other")
    assert status == CheckpointError.exit_status
    assert f"{what} changed" in printed
    assert tree(out) == before


def test_an_attempt_that_is_refused_records_nothing_of_what_it_was_refused_for(runs_home, stopped, tmp_path):
    """No manifest of the wrong problems, no sums of nothing."""
    run = setting(shutil.copytree(runs_home, tmp_path / "home"), "plain")
    change(run.home, "the training problems")
    out = tmp_path / "attempt"
    assert run.train(out, "--spool", "--resume-from", str(stopped / NEWEST)) == CheckpointError.exit_status
    records = [row["record"] for row in spooled(out)]
    assert [row["kind"] for row in records] == ["phase", "outcome"]
    assert (records[-1]["code"], records[-1]["totals"], records[-1]["steps_done"]) == ("checkpoint_error", {}, 3)
    assert not (out / "manifest.json").exists()


@pytest.mark.parametrize(("engine", "written", "words"), cases("trainer/resume_warned", "engine", "written", "words"))
def test_what_may_change_the_last_bits_is_named(stopped: Path, engine, written, words: list[str]) -> None:
    state = read_state(stopped / NEWEST)
    manifest = Manifest.model_validate_json((stopped / "manifest.json").read_bytes())
    assert state.code == manifest.code
    config = RunConfig.from_whole({**state.config, "engine": {**state.config["engine"], **(engine or {})}})
    warnings = not_bit_by_bit(manifest, config, state.model_copy(update=written or {}))
    assert len(warnings) == len(words)
    assert all(word in warning for word, warning in zip(words, warnings, strict=True))


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.jsonl", "evals/before.jsonl"])
def test_an_unreadable_line_before_others_is_named_and_nothing_is_touched(plain: Setting, out: Path, name: str) -> None:
    lines = (out / name).read_bytes().splitlines(keepends=True)
    (out / name).write_bytes(lines[0] + ZEROS + b"\n" + b"".join(lines[1:]))
    before = tree(out)
    with pytest.raises(RunDirError, match=f"{name} line 2"):
        choose_in(RunDir.reopen(out), config_of(plain))
    assert tree(out) == before


def test_a_run_that_resumed_elsewhere_and_died_names_its_checkpoint(plain, stopped, tmp_path):
    out = tmp_path / "run"
    assert plain.train(out, "--resume-from", str(stopped / NEWEST), fault="step:4") == KILLED
    with (out / "events.jsonl").open("ab") as handle:
        handle.write(ZEROS)
    with pytest.raises(CheckpointMissing, match=NEWEST):
        choose_in(RunDir.reopen(out), config_of(plain))


def test_a_folder_without_a_run_in_use_or_of_a_worker_is_refused(plain: Setting, out: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunDirError, match="holds no run"):
        RunDir.reopen(tmp_path / "empty")
    with (out / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RunDirError, match="another trainer"):
            RunDir.reopen(out)
    (out / "spool").mkdir()
    with pytest.raises(RunDirError, match="--resume-from"):
        RunDir.reopen(out)
