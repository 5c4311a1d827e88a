"""The command line: instant help without torch, and a clear word with the right exit status for each bad input."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from grpo_core import __version__
from grpo_core.cli import main
from grpo_core.data.loaders import load_problems
from grpo_core.presets import PRESETS
from grpo_core.spool import SpoolReader

from .tiny import config, tiny_folder


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    tiny_folder(folder / "base")
    (folder / "train.jsonl").write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "longer prompt", "answer": "c"}\n')
    return folder


def attempt(home, tmp_path, capsys, **parts):
    """Run `grpo train` on a config of these parts, unchecked; returns exit status and what stderr says."""
    path = home / "given.yaml"
    path.write_text(yaml.safe_dump({**config().to_dict(), **parts}), encoding="utf-8")
    status = main(["train", str(path), "--out", str(tmp_path / "run")])
    return status, capsys.readouterr().err


def loaded_modules(*arguments):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "grpo_core.cli", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


def test_help_loads_nothing_heavy():
    text, modules = loaded_modules("--help")
    assert "train as a config says" in text
    assert "grpo_core.errors" in modules
    assert modules.isdisjoint({"torch", "transformers", "numpy", "pydantic", "yaml"})


def test_presets_and_data_load_no_torch(tmp_path):
    text, modules = loaded_modules("presets", "dapo")
    assert yaml.safe_load(text) == PRESETS["dapo"].settings
    assert "torch" not in modules
    _, modules = loaded_modules("demo-data", "--out", str(tmp_path))
    assert modules.isdisjoint({"torch", "transformers"})


def test_version_and_unknown_preset(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"grpo {__version__}\n"
    assert main(["presets", "nothing"]) == 2
    assert "dapo" in capsys.readouterr().err
    assert main(["presets"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("  ") for line in listed) == len(PRESETS)


def test_demo_data_is_disjoint(tmp_path):
    assert main(["demo-data", "--out", str(tmp_path / "data")]) == 0
    train = load_problems(tmp_path / "data/add-train.jsonl", "jsonl")
    heldout = load_problems(tmp_path / "data/add-heldout.jsonl", "jsonl")
    assert len(heldout) == 512
    assert len(train) > 4000
    assert not {p.prompt for p in train} & {p.prompt for p in heldout}


def test_demo_data_that_was_cut_short_is_not_taken_for_whole(tmp_path):
    """Files may have at most 16 KiB here, as on a disk that fills up."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384)); "
        "from grpo_core.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", code, "demo-data", "--out", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "cannot write" in done.stderr
    assert list(tmp_path.glob("*.jsonl")) == []


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"colour": "red"}, ["colour: unknown field", "sampling"]),
        ({"sampling": {"group_size": 1}}, ["sampling.group_size", "a group of 1 has no other completion"]),
        ({"optim": {"steps": "many"}}, ["optim.steps", '"many"']),
        ({"algorithm": {"scale": "minmax"}}, ["algorithm.scale", "'group_std', 'batch_std' or 'none'"]),
    ],
    ids=["unknown", "group_of_one", "wrong_type", "wrong_choice"],
)
def test_bad_config(home, tmp_path, capsys, parts, words):
    status, said = attempt(home, tmp_path, capsys, **parts)
    assert status == 2
    for word in words:
        assert word in said
    assert not (tmp_path / "run").exists()


def test_bad_reward_parameter(home, tmp_path, capsys):
    parts = {"reward": {"components": [{"name": "a", "kind": "exact", "params": {"extrct": "whole"}}]}}
    status, said = attempt(home, tmp_path, capsys, **parts)
    assert status == 2
    assert "reward.components.0.params.extrct" in said


def test_missing_config_file(tmp_path, capsys):
    assert main(["train", str(tmp_path / "none.yaml"), "--out", str(tmp_path / "run")]) == 2
    assert "no such config file" in capsys.readouterr().err


def spooled(path, out, *words):
    """Exit status of `grpo train --spool`, and the outcome that a worker finds: in its file and in the spool."""
    status = main(["train", str(path), "--out", str(out), "--spool", *words])
    end = json.loads((out / "outcome.json").read_text())
    (only,) = SpoolReader(out / "spool").read_new()
    assert json.loads(only.body)["record"] == end
    return status, end


@pytest.mark.parametrize(
    ("parts", "variables", "status", "code", "steps", "words"),
    [
        ({"colour": "red"}, {}, 2, "config_error", 0, "colour: unknown field"),
        ({"engine": {"nodes": 2}}, {}, 2, "config_error", 2, "COHORT_HOSTS"),
        (
            {"engine": {"nodes": 2}},
            {"GRPO_HOSTS": "a,b", "GRPO_REMOTE_SHELL": "/no/shell"},
            2,
            "config_error",
            2,
            "for b",
        ),
        ({"engine": {"devices": 2}}, {"RANK": "0"}, 2, "config_error", 2, "and no WORLD_SIZE"),
    ],
    ids=["config", "hosts", "shell", "marks"],
)
def test_every_refusal_before_training_leaves_an_outcome_for_a_worker(
    home, tmp_path, monkeypatch, parts, variables, status, code, steps, words
):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GRPO_HOSTS", "GRPO_REMOTE_SHELL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    path = home / "given.yaml"
    path.write_text(yaml.safe_dump({**config().to_dict(), **parts}), encoding="utf-8")
    ended, end = spooled(path, tmp_path / "run")
    assert ended == status
    assert (end["status"], end["code"], end["steps_planned"]) == ("failed", code, steps)
    assert words in end["message"]


def test_a_refusal_in_a_folder_that_holds_a_run_leaves_it_alone(home, tmp_path, capsys):
    out = tmp_path / "run"
    out.mkdir()
    (out / "metrics.jsonl").write_text("")
    path = home / "given.yaml"
    path.write_text(config().to_yaml(), encoding="utf-8")
    assert main(["train", str(path), "--out", str(out), "--spool"]) == 9
    assert "already holds a run" in capsys.readouterr().err
    assert sorted(one.name for one in out.iterdir()) == ["metrics.jsonl"]


def test_missing_model(home, tmp_path, capsys):
    status, said = attempt(home, tmp_path, capsys, model={"path": "elsewhere"})
    assert status == 4
    assert str(home / "elsewhere") in said
    end = json.loads((tmp_path / "run/outcome.json").read_text())
    assert (end["status"], end["code"], end["steps_done"]) == ("failed", "model_error", 0)
    assert str(home / "elsewhere") in end["message"]


def test_pickle_weights(home, tmp_path, capsys):
    shutil.copytree(home / "base", home / "pickled", dirs_exist_ok=True)
    (home / "pickled/model.safetensors").rename(home / "pickled/pytorch_model.bin")
    status, said = attempt(home, tmp_path, capsys, model={"path": "pickled"})
    assert status == 4
    assert "pytorch_model.bin" in said


def test_prompt_over_the_limit(home, tmp_path, capsys):
    data = {"path": "train.jsonl", "max_prompt_tokens": 5}
    status, said = attempt(home, tmp_path, capsys, data=data)
    assert status == 3
    assert "train.jsonl" in said
    assert "line-2 has 13 tokens, over data.max_prompt_tokens = 5" in said


def test_prompt_over_the_limit_may_be_dropped(home, tmp_path, capsys):
    data = {"path": "train.jsonl", "max_prompt_tokens": 5, "long_prompts": "drop"}
    assert attempt(home, tmp_path, capsys, data=data)[0] == 0
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert (manifest["data"]["train"]["problems"], manifest["data"]["train"]["dropped"]) == (1, 1)
    events = [json.loads(line)["record"] for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    assert [event["data"]["dropped"] for event in events if event.get("type") == "data"] == [["line-2"]]


def test_all_prompts_dropped(home, tmp_path, capsys):
    (home / "long.jsonl").write_text('{"prompt": "longer prompt", "answer": "c"}\n')
    data = {"path": "long.jsonl", "max_prompt_tokens": 5, "long_prompts": "drop"}
    status, said = attempt(home, tmp_path, capsys, data=data)
    assert status == 3
    assert "all 1 prompts are over" in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"prompt": "a", "answer": "b"}\nnot json\n', ["bad.jsonl, line 2", "not JSON"]),
        ("", ["bad.jsonl", "no problems"]),
        (None, ["no such data file", "bad.jsonl"]),
    ],
    ids=["not_json", "empty", "missing"],
)
def test_bad_data(home, tmp_path, capsys, text, words):
    path = home / "bad.jsonl"
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text)
    status, said = attempt(home, tmp_path, capsys, data={"path": "bad.jsonl"})
    assert status == 3
    for word in words:
        assert word in said


def test_completions_that_do_not_fit_the_model(home, tmp_path, capsys):
    status, said = attempt(home, tmp_path, capsys, sampling={"max_completion_tokens": 600})
    assert status == 2
    assert "need 613 positions; the model has 512" in said


def test_a_folder_that_holds_a_run_is_left_alone(home, tmp_path, capsys):
    assert attempt(home, tmp_path, capsys)[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    status, said = attempt(home, tmp_path, capsys)
    assert status == 9
    assert "already holds a run" in said
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_nothing_to_evaluate_on(home, capsys):
    path = home / "noeval.yaml"
    path.write_text(config().to_yaml())
    assert main(["eval", str(path)]) == 2
    assert "nothing to evaluate on" in capsys.readouterr().err


def test_a_config_laid_in_the_run_folder_stays_as_it_is(home, tmp_path):
    """A worker lays config.yaml and inputs/ into the run folder; relative paths start there."""
    run = tmp_path / "run"
    (run / "inputs").mkdir(parents=True)
    shutil.copy(home / "train.jsonl", run / "inputs/problems.jsonl")
    given = (
        "# laid by a worker\n"
        + config(model={"path": str(home / "base")}, data={"path": "inputs/problems.jsonl"}).to_yaml()
    )
    (run / "config.yaml").write_text(given)
    assert main(["train", str(run / "config.yaml"), "--out", str(run), "--spool"]) == 0
    assert (run / "config.yaml").read_text() == given
    assert not (run / "log.txt").exists()  # the worker points stdout there
    assert Path(run / "spool").is_dir()
