"""The manifest tells what is there: the commit, what differs from it, the hashes of what was loaded."""

import hashlib
import subprocess

import pytest

from grpo_core import __version__
from grpo_core.manifest import code_state, model_inputs, read_provenance, tokenizer_sha256

from .tiny import tiny_folder


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
    before = model_inputs(folder)
    assert before["the model's settings"] == hashlib.sha256(lines.encode()).hexdigest()
    (folder / "generation_config.json").unlink()
    after = model_inputs(folder)
    assert [what for what in before if after[what] != before[what]] == ["the model's settings"]
    with (folder / "tokenizer.json").open("a") as handle:
        handle.write(" ")
    assert tokenizer_sha256(folder) != tokenizer
