"""Where a run goes on: in its own directory, in another one, with more steps; and where it must not."""

import fcntl
import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from grpo_core.checkpoints.resume import not_bit_by_bit
from grpo_core.checkpoints.state import read_state
from grpo_core.cli import main
from grpo_core.config import RunConfig
from grpo_core.records import Manifest
from grpo_core.spool import SpoolReader

from .runs import KILLED, STEPS, names_of_steps, result, rows, setting, state_of, tree, write_state

# ---------------------------------------------------------------------- where a run goes on


def test_the_directory_reads_as_one_run_and_nothing_is_lost(runs_home: Path, stopped: Path, tmp_path: Path) -> None:
    out = shutil.copytree(stopped, tmp_path / "run")
    with (out / "metrics.jsonl").open("a") as handle:
        handle.write('{"seq": 99, "torn')  # as a kill inside a write leaves it
    (out / "checkpoints/.step-000004.tmp").mkdir()
    before = (out / "events.jsonl").read_bytes()
    assert setting(runs_home, "plain").train(out, "--resume") == 0
    for name in ("events.jsonl", "metrics.jsonl", "samples/step-000004.jsonl"):
        seqs = [json.loads(line)["seq"] for line in (out / name).read_text().splitlines()]
        assert seqs == sorted(set(seqs)), name
    aside = out / "superseded/1"
    assert (aside / "metrics.jsonl").read_text() == '{"seq": 99, "torn'
    moved = (aside / "events.jsonl").read_bytes()
    assert before.endswith(moved)
    assert (out / "events.jsonl").read_bytes().startswith(before.removesuffix(moved))
    assert not list((out / "checkpoints").glob(".*.tmp"))
    kept = [row["path"] for row in rows(out / "events.jsonl") if row["kind"] == "checkpoint"]
    assert kept == [f"checkpoints/step-{step:06d}" for step in range(STEPS + 1)] + ["checkpoints/final"]
    removed = [row["path"] for row in rows(out / "events.jsonl") if row["kind"] == "checkpoint_removed"]
    assert set(kept) - set(removed) == {f"checkpoints/{path.name}" for path in (out / "checkpoints").iterdir()}


def test_an_attempt_in_a_folder_of_its_own(runs_home: Path, stopped: Path, tmp_path: Path, whole) -> None:
    """As a worker starts it: the newest is not there, the next is taken; records count from 1 and begin at its step."""
    out = tmp_path / "attempt-2"
    given = ["--resume-from", str(tmp_path / "nowhere"), "--resume-from", str(stopped / "checkpoints/step-000003")]
    assert setting(runs_home, "plain").train(out, "--spool", *given) == 0
    reader = SpoolReader(out / "spool")
    spooled = [json.loads(one.body) for one in reader.read_new(limit=10**6, max_bytes=10**9)]
    assert [one["seq"] for one in spooled] == list(range(1, len(spooled) + 1))
    kinds = [one["record"]["kind"] for one in spooled]
    assert kinds[kinds.index("manifest") + 1] == "resumed"
    resumed = spooled[kinds.index("resumed")]["record"]
    assert (resumed["step"], resumed["checkpoint"]) == (3, "checkpoints/step-000003")
    assert [one["path"].rpartition("/")[2] for one in resumed["skipped"]] == ["nowhere"]
    found, wanted = result(out), whole("plain")
    assert (found.weights, found.totals) == (wanted.weights, wanted.totals)
    assert found.metrics == wanted.metrics[3:]
    assert found.evaluations == {"after.jsonl": wanted.evaluations["after.jsonl"]}


def test_extending_a_finished_run(runs_home: Path, tmp_path: Path) -> None:
    run = setting(runs_home, "plain")
    assert run.train(tmp_path / "five", optim={"steps": 5}) == 0
    assert run.train(tmp_path / "three", optim={"steps": 3}) == 0
    status, said = run.told(tmp_path / "three", "--resume", optim={"steps": 3})
    assert status == 9
    assert "to extend it, give a larger optim.steps" in said
    assert run.train(tmp_path / "three", "--resume", optim={"steps": 5}) == 0
    assert result(tmp_path / "three") == result(tmp_path / "five")
    assert json.loads((tmp_path / "three/superseded/1/outcome.json").read_text())["steps_planned"] == 3


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"optim": {"lr": 0.5}}, "optim.lr: was 0.0005 and is 0.5"),
        ({"seed": 3}, "seed: was 0 and is 3"),
        ({"eval": {"margin": 0.2}}, "eval.margin: was 0.05 and is 0.2"),
        ({"optim": {"steps": 2}}, "optim.steps: is 2; the checkpoint has 3"),
    ],
)
def test_a_config_that_would_be_another_run_is_refused(
    runs_home: Path, stopped: Path, tmp_path: Path, more: dict[str, object], field: str
) -> None:
    out = shutil.copytree(stopped, tmp_path / "run")
    before = (out / "metrics.jsonl").read_bytes()
    status, said = setting(runs_home, "plain").told(out, "--resume", **more)
    assert status == 2
    assert field in said
    assert (out / "metrics.jsonl").read_bytes() == before


def test_what_changes_nothing_trained_may_change(runs_home: Path, stopped: Path, tmp_path: Path, whole) -> None:
    out = shutil.copytree(stopped, tmp_path / "run")
    more = {"name": "other", "engine": {"micro_batch_tokens": 4096}, "checkpoints": {"keep": 5}}
    before = (out / "config.yaml").read_bytes()
    assert setting(runs_home, "plain").train(out, "--resume", **more) == 0
    assert result(out).weights == whole("plain").weights
    assert (out / "superseded/1/config.yaml").read_bytes() == before
    assert RunConfig.from_file(out / "config.yaml").name == "other"


def test_a_checkpoint_of_an_earlier_version_is_gone_on_from(
    runs_home: Path, stopped: Path, tmp_path: Path, whole
) -> None:
    """One that knows fewer fields of the config, wrote no digest of the model's settings and nothing of its code."""
    out = shutil.copytree(stopped, tmp_path / "run")
    checkpoint = out / "checkpoints/step-000003"
    state = state_of(checkpoint)
    del state["config"]["eval"]["margin"], state["config"]["algorithm"]["correction"]
    del state["config"]["engine"]["skip_zero_advantage"]
    del state["inputs"]["the model's settings"], state["code"]
    write_state(checkpoint, state)
    made = ["export", str(checkpoint), "--out", str(tmp_path / "made"), "--model", str(runs_home / "base")]
    assert main(made) == 0
    assert setting(runs_home, "plain").train(out, "--resume") == 0
    (resumed,) = [row for row in rows(out / "events.jsonl") if row["kind"] == "resumed"]
    assert (resumed["step"], resumed["skipped"]) == (3, [])
    assert not [row for row in rows(out / "events.jsonl") if row.get("type") == "warning"]
    assert result(out) == whole("plain")


def test_a_field_that_is_no_longer_there_is_named(runs_home: Path, stopped: Path, tmp_path: Path) -> None:
    out = shutil.copytree(stopped, tmp_path / "run")
    state = state_of(out / "checkpoints/step-000003")
    state["config"]["algorithm"]["twist"] = 0.5
    write_state(out / "checkpoints/step-000003", state)
    status, said = setting(runs_home, "plain").told(out, "--resume")
    assert status == 2
    assert "algorithm.twist: was 0.5 and is not there" in said
    assert said.count(": was ") == 1


def test_a_best_checkpoint_that_is_gone_is_not_named_again(runs_home: Path, stopped: Path, tmp_path: Path) -> None:
    """As after a step back over a damaged newest one, which was the best and for which the one before was removed."""
    out = shutil.copytree(stopped, tmp_path / "run")
    for name in names_of_steps(out):
        best = {"step": 1, "reward": 100.0}  # which no later one is above
        checkpoint = out / "checkpoints" / name
        write_state(checkpoint, state_of(checkpoint) | {"best": best, "recent": [0.1] * 10})
    new, run = tmp_path / "new", setting(runs_home, "plain")
    assert run.train(new, "--resume-from", str(out / "checkpoints/step-000003")) == 0
    assert run.train(out, "--resume") == 0
    told = {}
    for folder in (out, new):
        (resumed,) = [row for row in rows(folder / "events.jsonl") if row["kind"] == "resumed"]
        last = next(row for row in rows(folder / "events.jsonl") if row.get("path") == "checkpoints/step-000004")
        told[folder.name] = resumed["best"], last["best"], state_of(folder / last["path"])["best"]["step"]
    # In another folder the best may well lie where the run came from.
    assert told == {"run": (None, True, 4), "new": (1, False, 1)}


def test_plain_weights_are_no_place_to_go_on_from(runs_home: Path, stopped: Path, tmp_path: Path, whole) -> None:
    done, run = shutil.copytree(stopped, tmp_path / "done"), setting(runs_home, "plain")
    assert run.train(done, "--resume") == 0
    final = ["--resume-from", str(done / "checkpoints/final")]
    status, said = run.told(tmp_path / "new", *final)
    assert status == 7
    assert "checkpoints/final holds plain weights, which a run cannot go on from; give a step-… folder beside" in said
    assert "whole" not in said
    assert run.train(tmp_path / "new", *final, "--resume-from", str(done / "checkpoints/step-000003")) == 0
    assert result(tmp_path / "new").weights == whole("plain").weights


INPUTS = ["the training problems", "the held-out problems", "the base model's weights", "the model's settings"]


@pytest.mark.parametrize("what", INPUTS)
@pytest.mark.parametrize("ended", ["stopped", "finished"])
def test_inputs_that_changed_are_refused_and_nothing_is_touched(
    runs_home: Path, stopped: Path, tmp_path: Path, what: str, ended: str
) -> None:
    elsewhere = shutil.copytree(runs_home, tmp_path / "home")
    out = shutil.copytree(stopped, tmp_path / "run")
    if ended == "finished":
        assert setting(elsewhere, "plain").train(out, "--resume") == 0
    change(elsewhere, what)
    before = tree(out)
    # Another length and another config.yaml, which a resume that is let go on would write.
    status, said = setting(elsewhere, "plain").told(out, "--resume", optim={"steps": STEPS + 1}, name="other")
    assert status == 7
    assert f"{what} changed since" in said
    assert tree(out) == before


def change(home: Path, what: str) -> None:
    """Another letter in each problem, or another number in the weights or settings."""
    if what == "the base model's weights":
        weights = load_file(home / "base/model.safetensors")
        weights["lm_head.weight"][0, 0] += 1
        save_file(weights, home / "base/model.safetensors", metadata={"format": "pt"})
        return
    if what == "the model's settings":
        settings = json.loads((home / "base/config.json").read_text())
        settings["rms_norm_eps"] *= 2
        (home / "base/config.json").write_text(json.dumps(settings))
        return
    path = home / ("train.jsonl" if what == "the training problems" else "heldout.jsonl")
    path.write_text(path.read_text().replace("say ", "Say "))


def test_an_attempt_that_is_refused_says_nothing_of_what_it_was_refused_for(
    runs_home: Path, stopped: Path, tmp_path: Path
) -> None:
    """No manifest of the wrong problems, no sums of nothing."""
    elsewhere = shutil.copytree(runs_home, tmp_path / "home")
    change(elsewhere, "the training problems")
    out = tmp_path / "attempt"
    given = ["--resume-from", str(stopped / "checkpoints/step-000003")]
    assert setting(elsewhere, "plain").train(out, "--spool", *given) == 7
    spooled = [json.loads(one.body)["record"] for one in SpoolReader(out / "spool").read_new(limit=10**6)]
    assert [one["kind"] for one in spooled] == ["phase", "outcome"]
    assert (spooled[-1]["code"], spooled[-1]["totals"], spooled[-1]["steps_done"]) == ("checkpoint_error", {}, 3)
    assert not (out / "manifest.json").exists()


def test_what_may_change_the_last_bits_is_told(runs_home: Path, stopped: Path, tmp_path: Path) -> None:
    out = shutil.copytree(stopped, tmp_path / "run")
    batching = {"threads": 2, "micro_batch_tokens": 4096, "rollout_batch": 8, "rollout_tokens": 600}
    engine = {**batching, "autocast": "bfloat16"}
    status, said = setting(runs_home, "plain").told(out, "--resume", engine=engine)
    assert status == 0
    told = [row["message"] for row in rows(out / "events.jsonl") if row.get("type") == "warning"]
    told = [one for one in told if "Cohort's" not in one]  # the checkout may be worked on meanwhile
    assert told == [
        f"the checkpoint was written with {what}: not bit by bit"
        for what in (
            "CPU threads 1; it goes on with 2",
            "engine.rollout_batch 512; it goes on with 8",
            "engine.rollout_tokens 131072; it goes on with 600",
            "engine.micro_batch_tokens 16384; it goes on with 4096",
            "engine.autocast none; it goes on with bfloat16",
        )
    ]
    assert all(one in said for one in told)


def test_a_checkpoint_of_another_device_is_told(stopped: Path) -> None:
    state = read_state(stopped / "checkpoints/step-000003")
    manifest = Manifest.model_validate_json((stopped / "manifest.json").read_bytes())
    config = RunConfig.from_whole(state.config)
    assert not_bit_by_bit(manifest, config, state) == []
    assert not_bit_by_bit(manifest, config, state.model_copy(update={"device": "NVIDIA H200"})) == [
        "the checkpoint was written with device NVIDIA H200; it goes on with cpu: not bit by bit"
    ]


def test_compiled_layers_are_never_promised_bit_by_bit(stopped: Path) -> None:
    state = read_state(stopped / "checkpoints/step-000003")
    manifest = Manifest.model_validate_json((stopped / "manifest.json").read_bytes())
    compiled = RunConfig.from_whole({**state.config, "engine": {**state.config["engine"], "torch_compile": True}})
    same = state.model_copy(update={"config": compiled.to_dict()})
    (told,) = not_bit_by_bit(manifest, compiled, same)
    assert told.startswith("with engine.torch_compile, ")


def test_a_checkpoint_of_other_code_is_told(stopped: Path) -> None:
    state = read_state(stopped / "checkpoints/step-000003")
    manifest = Manifest.model_validate_json((stopped / "manifest.json").read_bytes())
    assert state.code == manifest.code
    code = {"version": "0.0.1", "git_commit": "a" * 40, "dirty_sha256": "b" * 64}
    told = not_bit_by_bit(manifest, RunConfig.from_whole(state.config), state.model_copy(update={"code": code}))
    assert told == [
        f"the checkpoint was written with Cohort's {what}: not bit by bit"
        for what in (
            f"version 0.0.1; it goes on with {manifest.code['version']}",
            f"commit {'a' * 40}; it goes on with {manifest.code['git_commit']}",
            f"uncommitted changes (SHA-256) {'b' * 64}; it goes on with {manifest.code['dirty_sha256']}",
        )
    ]


ZEROS = bytes(300)


def test_lines_that_a_power_loss_left_move_aside(runs_home: Path, stopped: Path, tmp_path: Path, whole) -> None:
    """Zeros behind the records, with and without an end of line, among them and after them."""
    out = shutil.copytree(stopped, tmp_path / "run")
    names = ("events.jsonl", "metrics.jsonl", "evals/before.jsonl")
    left = (ZEROS + b"\n", ZEROS, ZEROS + b"\n[]\n{}\n" + ZEROS)
    for name, zeros in zip(names, left, strict=True):
        with (out / name).open("ab") as handle:
            handle.write(zeros)
    assert setting(runs_home, "plain").train(out, "--resume") == 0
    assert result(out) == whole("plain")
    for name, zeros in zip(names, left, strict=True):
        assert (out / "superseded/1" / name).read_bytes().endswith(zeros), name


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.jsonl", "evals/before.jsonl"])
def test_an_unreadable_line_before_others_is_named_and_nothing_is_touched(
    runs_home: Path, stopped: Path, tmp_path: Path, name: str
) -> None:
    out = shutil.copytree(stopped, tmp_path / "run")
    lines = (out / name).read_bytes().splitlines(keepends=True)
    (out / name).write_bytes(lines[0] + ZEROS + b"\n" + b"".join(lines[1:]))
    before = tree(out)
    status, said = setting(runs_home, "plain").told(out, "--resume")
    assert status == 9
    assert f"{out / name} line 2 is no record" in said
    assert "Traceback" not in said
    assert tree(out) == before


def test_a_run_that_went_on_elsewhere_and_died_names_its_checkpoint(
    runs_home: Path, stopped: Path, tmp_path: Path, whole
) -> None:
    out, run = tmp_path / "run", setting(runs_home, "plain")
    given = ["--resume-from", str(stopped / "checkpoints/step-000003")]
    assert run.train(out, *given, fault="step:4") == KILLED
    with (out / "events.jsonl").open("ab") as handle:
        handle.write(ZEROS)
    status, said = run.told(out, "--resume")
    assert status == 7
    assert "It had gone on from checkpoints/step-000003 of another run directory, after step 3" in said
    assert "--resume-from" in said
    assert "anew" not in said
    assert run.train(tmp_path / "again", *given) == 0
    assert result(tmp_path / "again").weights == whole("plain").weights


def test_a_folder_without_a_run_in_use_or_a_workers_is_refused(runs_home: Path, stopped: Path, tmp_path: Path) -> None:
    run = setting(runs_home, "plain")
    (tmp_path / "empty").mkdir()
    status, said = run.told(tmp_path / "empty", "--resume")
    assert status == 9
    assert "holds no run to go on with" in said
    out = shutil.copytree(stopped, tmp_path / "run")
    with (out / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        status, said = run.told(out, "--resume")
    assert status == 9
    assert "another trainer is at work" in said
    (out / "spool").mkdir()
    status, said = run.told(out, "--resume")
    assert status == 9
    assert "--resume-from CHECKPOINT" in said
