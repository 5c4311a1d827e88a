"""`grpo train` over several devices and machines: it starts the processes itself, ends as they do, leaves none behind.

Another machine is this one here, behind a remote shell that only drops the name; two real hosts are in
tests/chaos/test_two_hosts.py.
"""

import json
import signal
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest
from safetensors.torch import load_file

from grpo_core import launch
from grpo_core.cli import main
from grpo_core.config import EngineConfig
from grpo_core.errors import ConfigError
from grpo_core.launch_hosts import passed_on
from tests.processes import below, clean_environment, lives, wait_for

from .tiny import config, tiny_folder

HERE = "sh -c 'shift; exec \"$@\"' sh"
"""A remote shell that reaches this machine by any name."""
TWO_HOSTS = {"GRPO_HOSTS": "127.0.0.1,other", "GRPO_REMOTE_SHELL": HERE}
ENDS = list(range(30))
LONG = {"optim": {"steps": 100_000, "lr": 1e-4}}
ON_ONE = pytest.param({"devices": 2}, {}, id="devices")
ON_TWO = pytest.param({"nodes": 2}, TWO_HOSTS, id="machines")
ON_ONE_SLOW = pytest.param({"devices": 2}, {}, id="devices", marks=pytest.mark.slow)
ON_TWO_SLOW = pytest.param({"nodes": 2}, TWO_HOSTS, id="machines", marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    base = tiny_folder(folder / "base")
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": ENDS}))
    problems = [{"prompt": "say " + "x" * (n % 7), "answer": "k"} for n in range(12)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in problems), encoding="utf-8")
    return folder


def written(home, out, *, engine, **parts):
    settings = {
        "sampling": {"group_size": 4, "prompts_per_step": 4, "max_completion_tokens": 24},
        # The reward falls with the length of long completions, so that there is something to learn.
        "algorithm": {"overlong": {"buffer_tokens": 12}},
        "optim": {"steps": 3, "lr": 1e-4},
        **parts,
    }
    path = home / f"{out.name}.yaml"
    path.write_text(config(**settings, engine={"threads": 1, **engine}).to_yaml(), encoding="utf-8")
    return path


def started(home, out, *, environment=None, **parts):
    """`grpo train`, with what it prints in one file."""
    with (home / f"{out.name}.txt").open("w") as printed:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "grpo_core.cli", "train", str(written(home, out, **parts)), "--out", str(out)],
            env={**clean_environment("GRPO_"), "OMP_NUM_THREADS": "1", **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
        )


def printed(home, out):
    return (home / f"{out.name}.txt").read_text(encoding="utf-8")


def weights(out):
    tensors = load_file(out / "checkpoints" / "final" / "model.safetensors")
    return {name: tensor.double() for name, tensor in tensors.items()}


def in_training(home, out, process):
    """Wait until a step is done."""
    wait_for(lambda: "step 1/" in printed(home, out), lambda: printed(home, out), process)


def ranks(process):
    """The trainer's processes, by rank."""
    found = {}
    for one in below(process.pid):
        with suppress(psutil.NoSuchProcess):
            words, told = one.cmdline(), one.environ()
            if "train" in words and "RANK" in told and "grpo_core.training.torchrun" not in words:
                found[int(told["RANK"])] = one
    return found


def gone(processes):
    return not any(map(lives, processes))


def outcome(out):
    return json.loads((out / "outcome.json").read_text())


@pytest.fixture(scope="module")
def alone(home, tmp_path_factory):
    """Weights of a run in one process."""
    out = tmp_path_factory.mktemp("alone") / "run"
    assert main(["train", str(written(home, out, engine={})), "--out", str(out)]) == 0
    return weights(out)


@pytest.mark.parametrize(("engine", "environment"), [ON_ONE_SLOW, ON_TWO])
def test_two_ranks_learn_what_one_does(home, alone, tmp_path, engine, environment):
    out = tmp_path / "two"
    status = started(home, out, engine=engine, environment=environment).wait()
    assert status == 0, printed(home, out)
    two, base = weights(out), load_file(home / "base" / "model.safetensors")
    assert max((alone[name] - base[name]).abs().max() for name in alone) > 1e-4  # it did learn something
    assert max((alone[name] - two[name]).abs().max() for name in alone) < 1e-6
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["platform"]["ranks"] == 2


@pytest.mark.parametrize(("engine", "environment"), [ON_ONE, ON_TWO_SLOW])
def test_a_killed_rank_ends_everything_and_is_named(home, tmp_path, engine, environment):
    out = tmp_path / "run"
    process = started(home, out, engine=engine, environment=environment, **LONG)
    in_training(home, out, process)
    everything = below(process.pid)
    ranks(process)[1].kill()
    assert process.wait() == -signal.SIGKILL, printed(home, out)
    assert ("rank 1 was killed" if "devices" in engine else "the part on other ended") in printed(home, out)
    assert gone(everything)
    ended = outcome(out)
    assert (ended["status"], ended["code"]) == ("failed", "nccl_error")


@pytest.mark.parametrize(("engine", "environment"), [ON_ONE, ON_TWO_SLOW])
def test_a_wish_to_stop_reaches_every_rank(home, tmp_path, engine, environment):
    out = tmp_path / "run"
    process = started(home, out, engine=engine, environment=environment, **LONG)
    in_training(home, out, process)
    everything = below(process.pid)
    process.terminate()
    assert process.wait() == 75, printed(home, out)
    assert gone(everything)
    ended = outcome(out)
    assert (ended["status"], ended["code"]) == ("stopped", "interrupted")
    kept = sorted((out / "checkpoints").glob("step-*"))
    assert kept[-1].name == f"step-{ended['steps_done']:06d}"


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "environment"), [ON_ONE, ON_TWO])
def test_nothing_outlives_the_command(home, tmp_path, engine, environment):
    out = tmp_path / "run"
    process = started(home, out, engine=engine, environment=environment, **LONG)
    in_training(home, out, process)
    everything = below(process.pid)
    assert len(everything) >= 2
    process.kill()
    process.wait()
    wait_for(lambda: gone(everything), lambda: str([one.cmdline() for one in everything if one.is_running()]))


@pytest.mark.slow
def test_a_failure_of_all_ranks_has_its_own_status(home, tmp_path):
    """Not torchrun's 1."""
    out = tmp_path / "run"
    process = started(home, out, engine={"devices": 2}, model={"path": "nowhere"})
    assert process.wait() == 4, printed(home, out)
    assert "Traceback" not in printed(home, out)


@pytest.mark.slow
def test_a_first_rank_that_fails_early_leaves_nobody_waiting(home, tmp_path):
    """The folder holds a run already: only the first rank looks. torchrun kills those that do not end, and then the
    status would be another."""
    out = tmp_path / "run"
    out.mkdir()
    (out / "metrics.jsonl").write_text("")
    process = started(home, out, engine={"devices": 2})
    assert process.wait() == 9, printed(home, out)
    assert "forcefully exiting" not in printed(home, out), "torchrun waited 30 s for the second and killed it"
    assert "Traceback" not in printed(home, out)


@pytest.mark.parametrize(("hosts", "word"), [("a, b", r"GRPO_HOSTS names 2 \(a, b\)"), (None, "COHORT_HOSTS")])
def test_too_few_machines_are_refused(monkeypatch, tmp_path, hosts, word):
    monkeypatch.delenv("GRPO_HOSTS", raising=False)
    if hosts:
        monkeypatch.setenv("GRPO_HOSTS", hosts)
    with pytest.raises(ConfigError, match=word):
        launch.launch(config(engine={"nodes": 3}), ["train"], config_file=tmp_path)


def marks(monkeypatch, told):
    """What torchrun, or something else, has set for this process."""
    for mark in launch.MARKS:
        monkeypatch.delenv(mark, raising=False)
    for mark, value in told.items():
        monkeypatch.setenv(mark, str(value))


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        ({"RANK": 3}, "no WORLD_SIZE and no LOCAL_RANK"),
        ({"RANK": 0, "WORLD_SIZE": 1}, "no LOCAL_RANK"),
        ({"LOCAL_RANK": 0}, "no RANK and no WORLD_SIZE"),
        ({"RANK": "x", "WORLD_SIZE": 1, "LOCAL_RANK": 0}, "RANK='x' is no number"),
        ({"RANK": 1, "WORLD_SIZE": 1, "LOCAL_RANK": 0}, "no rank 1 among 1"),
    ],
)
def test_a_rank_that_torchrun_did_not_give_is_refused(monkeypatch, told, wrong):
    marks(monkeypatch, told)
    with pytest.raises(ConfigError, match=f"{wrong}.*env -u {' -u '.join(told)} grpo train"):
        launch.needed(EngineConfig())


@pytest.mark.parametrize(
    ("engine", "started", "needs"),
    [
        ({}, None, False),
        ({"devices": 2}, None, True),
        ({"nodes": 2}, None, True),
        ({"devices": 2, "nodes": 3}, 6, False),
        ({}, 2, ConfigError),
        ({"devices": 2}, 3, ConfigError),
        ({"devices": 2, "nodes": 2}, 2, ConfigError),
    ],
)
def test_who_starts_the_others(monkeypatch, engine, started, needs):
    marks(monkeypatch, {"RANK": 0, "WORLD_SIZE": started, "LOCAL_RANK": 0} if started is not None else {})
    if needs is ConfigError:
        with pytest.raises(ConfigError, match=f"started {started} processes"):
            launch.needed(EngineConfig(**engine))
    else:
        assert launch.needed(EngineConfig(**engine)) is needs


def test_a_machine_without_the_files_says_which(tmp_path):
    there, other, absent = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "c.jsonl"
    there.write_text("12345")
    other.write_text("123")
    inputs = [[str(tmp_path), None], [str(there), 5], [str(other), 5], [str(absent), 5]]
    plan = {"host": "gpu-2", "folder": str(tmp_path), "environment": {}, "inputs": inputs, "command": ["false"]}
    words = [sys.executable, "-m", "grpo_core.launch_part"]
    done = subprocess.run(words, input=json.dumps(plan) + "\n", capture_output=True, text=True, check=False)
    assert done.returncode == ConfigError.exit_status
    assert f"on gpu-2: {other} has 3 bytes here and 5 on the first machine; {absent} is not here" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("words", "status"), [(["--resume"], 9), (["--resume-from", "missing"], 7)])
def test_what_is_missing_here_has_the_status_it_has_on_one_machine(home, tmp_path, words, status):
    path = tmp_path / "run.yaml"
    path.write_text(config(engine={"threads": 1, "nodes": 2}, model={"path": str(home / "base")}).to_yaml())
    done = subprocess.run(
        [sys.executable, "-P", "-m", "grpo_core.cli", "train", str(path), *words, "--out", "missing"],
        env={**clean_environment("GRPO_"), "OMP_NUM_THREADS": "1", **TWO_HOSTS},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr


def test_what_the_other_machines_see_of_the_first_one_s_variables():
    settings = {
        "VLLM_LOGGING_LEVEL": "INFO",
        "DS_ACCELERATOR": "cuda",
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "1",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }
    own = {"VLLM_HOST_IP": "10.0.0.1", launch.PARENT: "17", "HOME": "/h", "SECRET": "x"}
    assert passed_on({**TWO_HOSTS, **own, **settings}) == settings
