"""The demo's base model: repeatable, never half written, honest about where it came from."""

import json
from dataclasses import asdict

import pytest

from grpo_core.cli import main
from grpo_core.cold_start import Recipe, cold_start
from grpo_core.data.arithmetic import demo_split
from grpo_core.data.fingerprint import file_sha256, problems_digest
from grpo_core.errors import Interrupted, ModelError
from grpo_core.manifest import read_provenance

from .runs import KILLED, forked
from .tiny import load

RECIPE = Recipe(steps=3, batch=4)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cold") / "base"
    assert cold_start(folder, RECIPE, threads=1) is True
    return folder


def test_provenance_says_how_it_was_made(built):
    provenance = read_provenance(built)
    train, _ = demo_split(0)
    assert provenance["recipe"] == asdict(RECIPE)
    assert provenance["weights"] == {"model.safetensors": file_sha256(built / "model.safetensors")}
    assert provenance["data"]["problems_digest"] == problems_digest(train)
    assert provenance["threads"] == 1
    assert 0 < provenance["final_loss"] < 8
    assert provenance["packages"]["torch"]
    policy = load(built)
    assert 350_000 < policy.parameters() < 500_000


def test_held_out_problems_are_not_in_the_lesson():
    train, heldout = demo_split(0)
    assert not {problem.prompt for problem in train} & {problem.prompt for problem in heldout}


def test_same_recipe_same_weights(built, tmp_path):
    cold_start(tmp_path / "again", RECIPE, threads=1)
    cold_start(tmp_path / "other", Recipe(steps=3, batch=4, seed=1), threads=1)
    digest = file_sha256(built / "model.safetensors")
    assert file_sha256(tmp_path / "again/model.safetensors") == digest
    assert file_sha256(tmp_path / "other/model.safetensors") != digest


def test_same_recipe_is_used_again_and_says_so(built, capsys):
    stamp = (built / "model.safetensors").stat().st_mtime_ns
    assert main(["cold-start", "--out", str(built), "--steps", "3", "--batch", "4"]) == 0
    assert "nothing to build" in capsys.readouterr().out
    assert (built / "model.safetensors").stat().st_mtime_ns == stamp


def test_other_recipe_or_changed_weights_need_force(tmp_path, capsys):
    folder = tmp_path / "base"
    arguments = ["cold-start", "--out", str(folder), "--batch", "2", "--threads", "1"]
    assert main([*arguments, "--steps", "1"]) == 0
    assert main([*arguments, "--steps", "2"]) == 4
    assert "--force" in capsys.readouterr().err
    (folder / "model.safetensors").write_bytes(b"changed")
    assert main([*arguments, "--steps", "1"]) == 4
    assert main([*arguments, "--steps", "1", "--force"]) == 0
    assert load(folder).parameters()


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(ModelError, match="not empty"):
        cold_start(tmp_path, RECIPE)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_place_that_cannot_be_written_is_said_before_the_work(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    taught = []
    for place in (tmp_path / "file", tmp_path / "file/base"):
        with pytest.raises(ModelError, match="cannot write"):
            cold_start(place, RECIPE, progress=lambda step, loss: taught.append(step))
    assert taught == []
    assert main(["cold-start", "--out", str(tmp_path / "file/base")]) == 4
    assert "Traceback" not in capsys.readouterr().err


def test_a_provenance_that_is_none_needs_force(tmp_path):
    for text in ("[]", "{}", "no JSON"):
        (tmp_path / "cold_start.json").write_text(text)
        with pytest.raises(ModelError, match="--force"):
            cold_start(tmp_path, RECIPE)


def test_stopped_half_way_leaves_nothing_that_looks_finished(tmp_path):
    def stop(step, loss):
        if step == 2:
            raise Interrupted("asked to stop")

    with pytest.raises(Interrupted):
        cold_start(tmp_path / "base", RECIPE, progress=stop, threads=1)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("point", ["replace:aside", "replace:renamed"])
def test_killed_while_it_replaces_a_model_the_next_finds_one(tmp_path, point):
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


def test_a_run_records_where_its_base_came_from(built, tmp_path):
    assert main(["demo-data", "--out", str(tmp_path / "data")]) == 0
    (tmp_path / "run.yaml").write_text(
        json.dumps(
            {
                "model": {"path": str(built)},
                "data": {"path": "data/add-train.jsonl"},
                "reward": {"components": [{"name": "answer", "kind": "exact"}]},
                "sampling": {"group_size": 2, "prompts_per_step": 1, "max_completion_tokens": 4},
                "optim": {"steps": 1},
                "engine": {"threads": 1},
                "eval": {"path": "data/add-heldout.jsonl", "limit": 4},
            }
        )
    )
    assert main(["train", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "run")]) == 0
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert manifest["model"]["provenance"] == read_provenance(built)
    assert manifest["model"]["weights"] == read_provenance(built)["weights"]
