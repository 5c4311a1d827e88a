"""The demo's base model: repeatable, never half written, with a record of where it came from. The manifest of a run
tells what is there: the commit, what differs from it, the hashes of what was loaded."""

import hashlib
import json
import subprocess
from dataclasses import asdict

import pytest

from grpo_core import __version__
from grpo_core.cli.main import main
from grpo_core.data.arithmetic import demo_split
from grpo_core.data.fingerprint import file_sha256, problems_digest
from grpo_core.errors import Interrupted, ModelError
from grpo_core.model.source import ModelSource, model_inputs, tokenizer_sha256
from grpo_core.trainer.cold_start import Recipe, cold_start
from grpo_core.trainer.manifest import code_state, read_provenance

from .runs import KILLED, forked, train_here
from .tiny import load, tiny_folder

RECIPE = Recipe(steps=3, batch=4)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cold") / "base"
    assert cold_start(folder, RECIPE, threads=1) is True
    return folder


def test_the_provenance_records_how_it_was_made(built):
    provenance = read_provenance(built)
    train, heldout = demo_split(0)
    assert not {problem.prompt for problem in train} & {problem.prompt for problem in heldout}
    assert provenance["recipe"] == asdict(RECIPE)
    assert provenance["weights"] == {"model.safetensors": file_sha256(built / "model.safetensors")}
    assert provenance["data"]["problems_digest"] == problems_digest(train)
    assert provenance["threads"] == 1
    assert 0 < provenance["final_loss"] < 8
    assert provenance["packages"]["torch"]
    assert 350_000 < load(built).parameters() < 500_000


def test_same_recipe_same_weights_and_used_again(built, tmp_path):
    cold_start(tmp_path / "again", RECIPE, threads=1)
    cold_start(tmp_path / "other", Recipe(steps=3, batch=4, seed=1), threads=1)
    digest = file_sha256(built / "model.safetensors")
    assert file_sha256(tmp_path / "again/model.safetensors") == digest
    assert file_sha256(tmp_path / "other/model.safetensors") != digest
    stamp = (built / "model.safetensors").stat().st_mtime_ns
    assert main(["cold-start", "--out", str(built), "--steps", "3", "--batch", "4"]) == 0
    assert (built / "model.safetensors").stat().st_mtime_ns == stamp


def test_other_recipe_changed_weights_or_no_provenance_need_force(tmp_path):
    folder = tmp_path / "base"
    arguments = ["cold-start", "--out", str(folder), "--batch", "2", "--threads", "1"]
    assert main([*arguments, "--steps", "1"]) == 0
    assert main([*arguments, "--steps", "2"]) == 4
    (folder / "model.safetensors").write_bytes(b"changed")
    assert main([*arguments, "--steps", "1"]) == 4
    for text in ("[]", "{}", "no JSON"):
        (folder / "provenance.json").write_text(text)
        with pytest.raises(ModelError, match="--force"):
            cold_start(folder, RECIPE)
    assert main([*arguments, "--steps", "1", "--force"]) == 0
    assert load(folder).parameters()


def test_a_folder_with_other_things_or_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    (tmp_path / "letter.txt").write_text("mine")
    taught = []
    for place, why in ((".", "not empty"), ("letter.txt", "cannot write"), ("letter.txt/base", "cannot write")):
        with pytest.raises(ModelError, match=why):
            cold_start(tmp_path / place, RECIPE, progress=lambda step, loss: taught.append(step))
    assert taught == []
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_stopped_half_way_leaves_nothing_that_looks_finished(tmp_path):
    def stop(step, loss):
        if step == 2:
            raise Interrupted("asked to stop")

    with pytest.raises(Interrupted):
        cold_start(tmp_path / "base", RECIPE, progress=stop, threads=1)
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("point", ["replace:aside", "replace:renamed"])
def test_killed_while_it_replaces_a_model_the_next_start_has_a_model(tmp_path, point):
    """The old one as long as the new one has no name, then the new one; and what was left aside is in nobody's way."""
    arguments = ["cold-start", "--out", str(tmp_path / "base"), "--batch", "2", "--threads", "1", "--steps"]
    assert main([*arguments, "1"]) == 0
    old = file_sha256(tmp_path / "base/model.safetensors")
    assert forked([*arguments, "2", "--force"], fault=point) == KILLED
    there = "1" if point == "replace:aside" else "2"
    assert main([*arguments, there]) == 0  # the same recipe, so it is used again
    assert (file_sha256(tmp_path / "base/model.safetensors") == old) == (there == "1")
    assert forked([*arguments, "3", "--force"], fault=point) == KILLED
    assert main([*arguments, "4", "--force"]) == 0
    assert read_provenance(tmp_path / "base")["recipe"]["steps"] == 4
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_a_run_records_where_its_base_came_from(home, built, tmp_path):
    short = {"sampling": {"group_size": 2, "prompts_per_step": 1, "max_completion_tokens": 4}, "optim": {"steps": 1}}
    assert train_here(home, tmp_path / "run", model={"path": str(built)}, **short) == 0
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert manifest["model"]["provenance"] == read_provenance(built)
    assert manifest["model"]["weights"] == read_provenance(built)["weights"]


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "grpo_core").mkdir()
    (tmp_path / "grpo_core/a.py").write_text("one = 1\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        git(tmp_path, *command)
    return tmp_path


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", folder, *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_every_difference_to_the_commit_has_its_own_hash(checkout, tmp_path_factory):
    commit = git(checkout, "rev-parse", "HEAD")
    assert code_state(checkout) == {"version": __version__, "git_commit": commit, "dirty_sha256": None}
    nowhere = {"version": __version__, "git_commit": None, "dirty_sha256": None}
    assert code_state(tmp_path_factory.mktemp("installed")) == nowhere
    (checkout / "grpo_core/a.py").write_text("one = 2\n")
    changed = code_state(checkout)
    difference = git(checkout, "diff", "HEAD", "--binary") + "\n"
    assert changed["git_commit"] == commit
    assert changed["dirty_sha256"] == hashlib.sha256(difference.encode()).hexdigest()
    (checkout / "grpo_core/b.py").write_text("new file\n")
    (checkout / "notes.txt").write_text("no part of the package")
    added = code_state(checkout)
    assert added["dirty_sha256"] not in (None, changed["dirty_sha256"])
    (checkout / "notes.txt").unlink()
    assert code_state(checkout) == added


def test_the_digests_of_settings_by_hand_and_of_the_tokenizer(tmp_path):
    folder = tiny_folder(tmp_path / "base")
    assert read_provenance(folder) is None
    tokenizer = tokenizer_sha256(folder)
    lines = "".join(
        f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n"
        for name in ("config.json", "generation_config.json")
    )
    before = model_inputs(ModelSource(folder, "base"))
    assert before["the model's settings"] == hashlib.sha256(lines.encode()).hexdigest()
    (folder / "generation_config.json").unlink()
    after = model_inputs(ModelSource(folder, "base"))
    assert [what for what in before if after[what] != before[what]] == ["the model's settings"]
    with (folder / "tokenizer.json").open("a") as handle:
        handle.write(" ")
    assert tokenizer_sha256(folder) != tokenizer
