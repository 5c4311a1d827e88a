"""A checkpoint is there whole or not at all, and says when a byte of it changed."""

import os

import pytest

from grpo_core.checkpoint_files import MANIFEST, publish_folder, verify_checkpoint
from grpo_core.checkpoints.write import save_weights
from grpo_core.errors import CheckpointError, DiskFullError

from .tiny import load, tiny_folder


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return load(tiny_folder(tmp_path_factory.mktemp("models") / "base"))


@pytest.fixture
def saved(policy, tmp_path):
    folder = tmp_path / "checkpoints" / "final"
    manifest = save_weights(folder, policy, step=3, run_folder=tmp_path)
    assert manifest.path == "checkpoints/final"
    return folder


def test_every_file_is_listed(saved):
    manifest = verify_checkpoint(saved)
    assert manifest.files.keys() == {path.name for path in saved.iterdir()} - {MANIFEST}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= manifest.files.keys()
    assert manifest.files["model.safetensors"].size == os.path.getsize(saved / "model.safetensors")
    assert not [path for path in saved.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".pkl")]


def test_one_changed_byte_is_seen(saved):
    path = saved / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors was changed"):
        verify_checkpoint(saved)


def test_missing_and_added_files_are_seen(saved):
    (saved / "extra.txt").write_text("x")
    with pytest.raises(CheckpointError, match=r"extra\.txt was added"):
        verify_checkpoint(saved)
    (saved / "extra.txt").unlink()
    (saved / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        verify_checkpoint(saved)


def test_a_folder_without_its_manifest_is_no_checkpoint(saved):
    (saved / MANIFEST).unlink()
    with pytest.raises(CheckpointError, match="not a finished checkpoint"):
        verify_checkpoint(saved)


def test_writing_where_nothing_can_be_written(policy, tmp_path):
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    with pytest.raises(CheckpointError, match="cannot write the checkpoint"):
        save_weights(tmp_path / "checkpoints/final", policy, step=1, run_folder=tmp_path)


def test_a_failure_before_the_rename_leaves_the_old_one(policy, saved, tmp_path, monkeypatch):
    before = verify_checkpoint(saved)

    def full(*arguments, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(policy.tokenizer, "save_pretrained", full)
    with pytest.raises(DiskFullError, match="no room for the checkpoint final"):
        save_weights(saved, policy, step=4, run_folder=tmp_path)
    assert verify_checkpoint(saved) == before


def test_publishing_replaces_the_old_folder(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old/a").write_text("1")
    (tmp_path / "new").mkdir()
    (tmp_path / "new/b").write_text("2")
    publish_folder(tmp_path / "new", tmp_path / "old")
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["b"]
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("replaced", [False, True])
def test_publishing_is_not_kept_by_what_a_kill_left_aside(tmp_path, replaced):
    aside = tmp_path / ".old.old.tmp"
    for folder in (aside, tmp_path / "new", *([tmp_path / "old"] if replaced else [])):
        folder.mkdir()
        (folder / f"of-{folder.name}").write_text("1")
    publish_folder(tmp_path / "new", tmp_path / "old")
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["old", "old/of-new"]
