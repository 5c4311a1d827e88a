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

from grpo_core.cli.main import main
from grpo_core.config.run import EngineConfig
from grpo_core.distributed import launch
from grpo_core.distributed.hosts import passed_on
from grpo_core.errors import ConfigError
from grpo_core.files.checkpoint import step_folder
from tests.processes import lives, wait_for
from tests.tables import cases

from .runs import Launched, far, names_of_steps, outcome_of, weights_of
from .tiny import config

HERE = "sh -c 'shift; exec \"$@\"' sh"
"""A remote shell that reaches this machine by any name."""
TWO_HOSTS = {"GRPO_HOSTS": "127.0.0.1,other", "GRPO_REMOTE_SHELL": HERE}
LONG = {"optim": {"steps": 100_000, "lr": 1e-4}}
ON_ONE = pytest.param({"devices": 2}, {}, id="devices")
ON_TWO = pytest.param({"nodes": 2}, TWO_HOSTS, id="machines")
ON_ONE_SLOW = pytest.param({"devices": 2}, {}, id="devices", marks=pytest.mark.slow)
ON_TWO_SLOW = pytest.param({"nodes": 2}, TWO_HOSTS, id="machines", marks=pytest.mark.slow)


def written(home, out, *, engine, **parts):
    settings = {
        "model": {"path": "ends"},
        "sampling": {"group_size": 4, "prompts_per_step": 4, "max_completion_tokens": 24},
        # The reward falls with the length of long completions, so that there is something to learn.
        "algorithm": {"overlong": {"buffer_tokens": 12}, "signal_gate": "reward"},
        "optim": {"steps": 3, "lr": 1e-4},
        **parts,
    }
    path = home / f"{out.name}.yaml"
    path.write_text(config(**settings, engine={"threads": 1, **engine}).to_yaml(), encoding="utf-8")
    return path


def launched(home, out, *, environment=None, **parts):
    return Launched(written(home, out, **parts), out, **(environment or {}))


def end_of(run):
    """(exit status, status and code of the outcome)."""
    status = run.ended()
    outcome = outcome_of(run.out) if (run.out / "outcome.json").exists() else {}
    return status, outcome.get("status"), outcome.get("code")


def rank_of(process):
    """Which of the trainer's ranks it is; None of what starts them."""
    with suppress(psutil.NoSuchProcess):
        words, variables = process.cmdline(), process.environ()
        if "train" in words and "grpo_core.distributed.torchrun" not in words:
            return variables.get("RANK")
    return None


@pytest.fixture(scope="module")
def alone(home, tmp_path_factory):
    """Weights of a run in one process."""
    out = tmp_path_factory.mktemp("alone") / "run"
    assert main(["train", str(written(home, out, engine={})), "--out", str(out)]) == 0
    return weights_of(out)


@pytest.mark.parametrize(("engine", "environment"), [ON_ONE_SLOW, ON_TWO])
def test_two_ranks_learn_what_one_does(home, alone, tmp_path, engine, environment):
    run = launched(home, tmp_path / "two", engine=engine, environment=environment)
    assert run.ended() == 0, run.printed
    assert far(alone, load_file(home / "ends" / "model.safetensors")) > 1e-4  # it did learn something
    assert far(alone, weights_of(run.out)) < 1e-6
    assert json.loads((run.out / "manifest.json").read_text())["platform"]["ranks"] == 2


@pytest.mark.parametrize(("engine", "environment"), [ON_ONE, ON_TWO_SLOW])
def test_a_killed_rank_ends_everything_and_is_named(home, tmp_path, engine, environment):
    run = launched(home, tmp_path / "run", engine=engine, environment=environment, **LONG)
    everything = run.until("step 1/")
    (second,) = [process for process in everything if rank_of(process) == "1"]
    second.kill()
    assert end_of(run) == (-signal.SIGKILL, "failed", "nccl_error"), run.printed
    assert ("rank 1 was killed" if "devices" in engine else "the part on other ended") in run.printed
    assert not any(map(lives, everything))


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "environment"), [ON_ONE, ON_TWO_SLOW])
def test_a_stopped_rank_is_named_and_a_wish_to_stop_reaches_every_rank(home, tmp_path, engine, environment):
    engine = {**engine, "watchdog_seconds": 1.5}
    run = launched(home, tmp_path / "run", engine=engine, environment=environment, **LONG)
    everything = run.until("step 1/")
    (second,) = [process for process in everything if rank_of(process) == "1"]
    events = run.out / "events.jsonl"
    second.suspend()
    try:
        wait_for(lambda: "rank 1 of 2 has published no status for " in events.read_text(), events.read_text)
    finally:
        second.resume()
    wait_for(lambda: "resumed after" in events.read_text(), events.read_text)
    run.process.terminate()
    assert end_of(run) == (75, "stopped", "interrupted"), run.printed
    assert not any(map(lives, everything))
    assert names_of_steps(run.out)[-1] == step_folder(outcome_of(run.out)["steps_done"])


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "environment"), [ON_ONE, ON_TWO])
def test_nothing_outlives_the_command(home, tmp_path, engine, environment):
    run = launched(home, tmp_path / "run", engine=engine, environment=environment, **LONG)
    everything = run.until("step 1/")
    assert len(everything) >= 2
    run.process.kill()
    run.process.wait()
    wait_for(lambda: not any(map(lives, everything)), lambda: str(everything))


@pytest.mark.slow
@pytest.mark.parametrize(("parts", "status"), [({"model": {"path": "nowhere"}}, 4), ({}, 9)], ids=["all", "first"])
def test_ranks_that_fail_have_their_own_status_and_none_waits(home, tmp_path, parts, status):
    """Not torchrun's 1. Only the first rank sees that the folder holds a run already; torchrun kills those that do not
    end, and then the status would be another."""
    out = tmp_path / "run"
    if not parts:
        out.mkdir()
        (out / "metrics.jsonl").write_text("")
    run = launched(home, out, engine={"devices": 2}, **parts)
    assert run.ended() == status, run.printed
    assert "forcefully exiting" not in run.printed, "torchrun waited 30 s for the second and killed it"
    assert "Traceback" not in run.printed


@pytest.mark.parametrize(
    ("engine", "marks", "needed", "refused"), cases("core/torchrun_marks", "engine", "marks", "needed", "refused")
)
def test_who_starts_the_others(monkeypatch, engine, marks, needed, refused):
    """`marks`: what torchrun, or something else, has set for this process."""
    for mark in launch.MARKS:
        monkeypatch.delenv(mark, raising=False)
    for mark, value in (marks or {}).items():
        monkeypatch.setenv(mark, str(value))
    if refused:
        with pytest.raises(ConfigError, match=refused):
            launch.needed(EngineConfig(**(engine or {})))
    else:
        assert launch.needed(EngineConfig(**(engine or {}))) is needed


def test_a_machine_without_the_files_says_which(tmp_path):
    there, other, absent = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "c.jsonl"
    there.write_text("12345")
    other.write_text("123")
    inputs = [[str(tmp_path), None], [str(there), 5], [str(other), 5], [str(absent), 5]]
    plan = {"host": "gpu-2", "folder": str(tmp_path), "environment": {}, "inputs": inputs, "command": ["false"]}
    words = [sys.executable, "-m", "grpo_core.distributed.part"]
    done = subprocess.run(words, input=json.dumps(plan) + "\n", capture_output=True, text=True, check=False)
    assert done.returncode == ConfigError.exit_status
    assert f"on gpu-2: {other} has 3 bytes here and 5 on the first machine; {absent} is not here" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("words", "status"), [(["--resume"], 9), (["--resume-from", "missing"], 7)])
def test_what_is_missing_here_has_the_status_it_has_on_one_machine(home, tmp_path, monkeypatch, words, status):
    for name, value in TWO_HOSTS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    path = written(home, tmp_path / "run", engine={"nodes": 2})
    assert main(["train", str(path), *words, "--out", "missing"]) == status


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
