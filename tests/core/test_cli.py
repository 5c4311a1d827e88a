"""The command line: each bad input ends with its exit status and leaves an outcome for a worker; how its process ends,
alone and as one of several ranks, and how its threads of OpenMP wait."""

import json
import shutil
import subprocess
import sys

import pytest
import yaml

from grpo_core.cli.main import main, set_openmp_policy
from grpo_core.files.spool import SpoolReader
from tests.processes import clean_environment
from tests.tables import cases

from .tiny import config, tiny_folder


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    tiny_folder(folder / "base")
    shutil.copytree(folder / "base", folder / "pickled")
    (folder / "pickled/model.safetensors").rename(folder / "pickled/pytorch_model.bin")
    good, long = '{"prompt": "a", "answer": "b"}\n', '{"prompt": "longer prompt", "answer": "c"}\n'
    for name, text in (("train", good + long), ("long", long), ("bad", good + "not json\n")):
        (folder / f"{name}.jsonl").write_text(text)
    return folder


def written(home, **parts):
    """A config of these parts, unchecked."""
    path = home / "given.yaml"
    path.write_text(yaml.safe_dump({**config().to_dict(), **parts}), encoding="utf-8")
    return path


def train(path, out, *words):
    return main(["train", str(path), "--out", str(out), *words])


def outcome(out):
    """Of a run that failed before its first step, as a worker finds it: in its file and in the spool."""
    end = json.loads((out / "outcome.json").read_text())
    *_, last = SpoolReader(out / "spool").read_new()
    assert json.loads(last.body)["record"] == end
    assert (end["status"], end["steps_done"]) == ("failed", 0)
    return end


def test_demo_data_that_was_cut_short_is_not_taken_for_whole(tmp_path):
    """Files may have at most 16 KiB here, as on a disk that fills up."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384)); "
        "from grpo_core.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", code, "demo-data", "--out", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "cannot write" in done.stderr
    assert list(tmp_path.glob("*.jsonl")) == []


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("parts", "variables", "status", "code", "steps", "word"),
    cases("core/train_refusals", "parts", "variables", "status", "code", "steps", "word"),
)
def test_every_refusal_before_training_has_its_status_and_leaves_an_outcome(
    home, tmp_path, monkeypatch, parts, variables, status, code, steps, word
):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GRPO_HOSTS", "GRPO_REMOTE_SHELL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (variables or {}).items():
        monkeypatch.setenv(name, value)
    assert train(written(home, **parts), tmp_path / "run", "--spool") == status
    end = outcome(tmp_path / "run")
    assert (end["code"], end["steps_planned"]) == (code, steps)
    assert word in end["message"]


@pytest.mark.parametrize("parts", [{"colour": "red"}, {"sampling": {"group_size": 1}}])
def test_a_config_refused_without_a_worker_makes_no_folder(home, tmp_path, capsys, parts):
    assert train(written(home, **parts), tmp_path / "run") == 2
    assert capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_missing_config_and_nothing_to_evaluate_on(home, tmp_path):
    assert train(tmp_path / "none.yaml", tmp_path / "run") == 2
    assert main(["eval", str(written(home))]) == 2


def test_a_folder_that_holds_a_run_is_left_alone(home, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "metrics.jsonl").write_text("")
    assert train(written(home), out, "--spool") == 9
    assert [path.name for path in out.iterdir()] == ["metrics.jsonl"]


def test_prompts_over_the_limit_may_be_dropped_and_are_counted(home, tmp_path):
    data = {"path": "train.jsonl", "max_prompt_tokens": 5, "long_prompts": "drop"}
    out = tmp_path / "run"
    assert train(written(home, data=data), out) == 0
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["data"]["train"]["problems"], manifest["data"]["train"]["dropped"]) == (1, 1)
    events = [json.loads(line)["record"] for line in (out / "events.jsonl").read_text().splitlines()]
    assert [event["data"]["dropped"] for event in events if event.get("type") == "data"] == [["line-2"]]


def test_problems_whose_reference_cannot_be_read_may_be_dropped_and_are_named(home, tmp_path):
    rows = [{"prompt": "1 + 1?", "answer": "2"}, {"prompt": "A sum?", "answer": "many"}]
    (home / "mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert (
        train(
            written(home, data={"path": "mixed.jsonl"}, reward={"components": [{"name": "answer", "kind": "numeric"}]}),
            tmp_path / "refused",
        )
        == 3
    )
    out = tmp_path / "run"
    assert (
        train(
            written(
                home,
                data={"path": "mixed.jsonl", "unreadable": "drop"},
                reward={"components": [{"name": "answer", "kind": "numeric"}]},
            ),
            out,
        )
        == 0
    )
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["data"]["train"]["problems"], manifest["data"]["train"]["unreadable"]) == (1, 1)
    events = [json.loads(line)["record"] for line in (out / "events.jsonl").read_text().splitlines()]
    (event,) = [event for event in events if event.get("type") == "data"]
    assert list(event["data"]["unreadable"]) == ["line-2"]
    assert "'many' is not a number" in event["data"]["unreadable"]["line-2"]


def test_a_config_laid_in_the_run_folder_stays_as_it_is(home, tmp_path):
    """A worker lays config.yaml and inputs/ into the run folder; relative paths start there."""
    run = tmp_path / "run"
    (run / "inputs").mkdir(parents=True)
    shutil.copy(home / "train.jsonl", run / "inputs/problems.jsonl")
    parts = config(model={"path": str(home / "base")}, data={"path": "inputs/problems.jsonl"})
    given = "# laid by a worker\n" + parts.to_yaml()
    (run / "config.yaml").write_text(given)
    assert train(run / "config.yaml", run, "--spool") == 0
    assert (run / "config.yaml").read_text() == given
    assert not (run / "log.txt").exists()  # the worker points stdout there
    assert (run / "spool").is_dir()


PROGRAM = """
import atexit
from grpo_core.cli.main import run_process
atexit.register(print, "taken apart")
def main():
    print("said before")
    {does}
run_process(main)
"""


def ended(does, world):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(does=does)],
        env={**clean_environment("GRPO_"), **world},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("world", [{}, {"WORLD_SIZE": "2"}], ids=["alone", "rank"])
def test_a_rank_ends_with_its_status_and_without_the_interpreter_s_end(world):
    lines = ["said before"] if world else ["said before", "taken apart"]
    assert ended("return 7", world) == (7, lines, "")
    status, _, error = ended("return {}['screw']", world)
    assert status == 1
    assert error.startswith("Traceback")
    assert error.endswith("KeyError: 'screw'\n")


@pytest.mark.slow
def test_threads_of_openmp_sleep_soon(tmp_path):
    """What OpenMP itself understood, in a `grpo` that loads torch and then fails."""
    words = [sys.executable, "-P", "-m", "grpo_core.cli.main", "export", str(tmp_path), "--out", str(tmp_path / "out")]
    shown = clean_environment("OMP_", "GOMP_") | {"OMP_DISPLAY_ENV": "VERBOSE"}
    printed = subprocess.run(words, env=shown, capture_output=True, text=True, check=False).stderr
    if "GOMP_SPINCOUNT" not in printed:
        pytest.skip("torch is built with another OpenMP here")
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in printed
    assert "GOMP_SPINCOUNT = '2000'" in printed


@pytest.mark.parametrize(
    ("before", "after"),
    [({}, {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "2000"}), *[({"OMP_WAIT_POLICY": "ACTIVE"},) * 2]],
    ids=["unset", "set by somebody"],
)
def test_what_somebody_set_stands(before, after):
    environment = dict(before)
    set_openmp_policy(environment)
    assert environment == after
