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
from tests.tables import cases

from .tiny import config, tiny_folder

HERE = "sh -c 'shift; exec \"$@\"' sh"
"""A remote shell that reaches this machine by any name."""
TWO_HOSTS = {"GRPO_HOSTS": "127.0.0.1,other", "GRPO_REMOTE_SHELL": HERE}
LONG = {"optim": {"steps": 100_000, "lr": 1e-4}}
ON_ONE = pytest.param({"devices": 2}, {}, id="devices")
ON_TWO = pytest.param({"nodes": 2}, TWO_HOSTS, id="machines")
ON_ONE_SLOW = pytest.param({"devices": 2}, {}, id="devices", marks=pytest.mark.slow)
ON_TWO_SLOW = pytest.param({"nodes": 2}, TWO_HOSTS, id="machines", marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    base = tiny_folder(folder / "base")
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(30))}))
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


class Launched:
    """A `grpo train`, and what it prints in one file."""

    def __init__(self, home, out, *, environment=None, **parts):
        self.out, self._file = out, home / f"{out.name}.txt"
        words = ["train", str(written(home, out, **parts)), "--out", str(out)]
        with self._file.open("w") as printed:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "grpo_core.cli", *words],
                env={**clean_environment("GRPO_"), "OMP_NUM_THREADS": "1", **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
            )

    @property
    def printed(self):
        return self._file.read_text(encoding="utf-8")

    def in_training(self):
        """Every process of it, once a step is done."""
        wait_for(lambda: "step 1/" in self.printed, lambda: self.printed, self.process)
        return below(self.process.pid)

    def ended(self):
        """(exit status, status and code of the outcome)."""
        status = self.process.wait()
        told = json.loads((self.out / "outcome.json").read_text()) if (self.out / "outcome.json").exists() else {}
        return status, told.get("status"), told.get("code")


def weights(out):
    tensors = load_file(out / "checkpoints" / "final" / "model.safetensors")
    return {name: tensor.double() for name, tensor in tensors.items()}


def rank_of(process):
    """Which of the trainer's ranks it is; None of what starts them."""
    with suppress(psutil.NoSuchProcess):
        words, variables = process.cmdline(), process.environ()
        if "train" in words and "grpo_core.training.torchrun" not in words:
            return variables.get("RANK")
    return None


@pytest.fixture(scope="module")
def alone(home, tmp_path_factory):
    """Weights of a run in one process."""
    out = tmp_path_factory.mktemp("alone") / "run"
    assert main(["train", str(written(home, out, engine={})), "--out", str(out)]) == 0
    return weights(out)


@pytest.mark.parametrize(("engine", "environment"), [ON_ONE_SLOW, ON_TWO])
def test_two_ranks_learn_what_one_does(home, alone, tmp_path, engine, environment):
    launched = Launched(home, tmp_path / "two", engine=engine, environment=environment)
    assert launched.ended()[0] == 0, launched.printed
    two, base = weights(launched.out), load_file(home / "base" / "model.safetensors")
    assert max((alone[name] - base[name]).abs().max() for name in alone) > 1e-4  # it did learn something
    assert max((alone[name] - two[name]).abs().max() for name in alone) < 1e-6
    assert json.loads((launched.out / "manifest.json").read_text())["platform"]["ranks"] == 2


@pytest.mark.parametrize(("engine", "environment"), [ON_ONE, ON_TWO_SLOW])
def test_a_killed_rank_ends_everything_and_is_named(home, tmp_path, engine, environment):
    launched = Launched(home, tmp_path / "run", engine=engine, environment=environment, **LONG)
    everything = launched.in_training()
    (second,) = [process for process in everything if rank_of(process) == "1"]
    second.kill()
    assert launched.ended() == (-signal.SIGKILL, "failed", "nccl_error"), launched.printed
    assert ("rank 1 was killed" if "devices" in engine else "the part on other ended") in launched.printed
    assert not any(map(lives, everything))


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "environment"), [ON_ONE, ON_TWO_SLOW])
def test_a_wish_to_stop_reaches_every_rank(home, tmp_path, engine, environment):
    launched = Launched(home, tmp_path / "run", engine=engine, environment=environment, **LONG)
    everything = launched.in_training()
    launched.process.terminate()
    assert launched.ended() == (75, "stopped", "interrupted"), launched.printed
    assert not any(map(lives, everything))
    done = json.loads((launched.out / "outcome.json").read_text())["steps_done"]
    assert max(path.name for path in (launched.out / "checkpoints").glob("step-*")) == f"step-{done:06d}"


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "environment"), [ON_ONE, ON_TWO])
def test_nothing_outlives_the_command(home, tmp_path, engine, environment):
    launched = Launched(home, tmp_path / "run", engine=engine, environment=environment, **LONG)
    everything = launched.in_training()
    assert len(everything) >= 2
    launched.process.kill()
    launched.process.wait()
    wait_for(lambda: not any(map(lives, everything)), lambda: str(everything))


@pytest.mark.slow
def test_a_stopped_rank_is_named_by_the_watchdog(home, tmp_path):
    launched = Launched(home, tmp_path / "run", engine={"devices": 2, "watchdog_seconds": 1.5}, **LONG)
    (second,) = [process for process in launched.in_training() if rank_of(process) == "1"]
    events = launched.out / "events.jsonl"
    second.suspend()
    try:
        wait_for(lambda: "rank 1 of 2 has not been heard of for " in events.read_text(), events.read_text)
    finally:
        second.resume()
    wait_for(lambda: "goes on after" in events.read_text(), events.read_text)
    launched.process.terminate()
    assert launched.ended()[0] == 75


@pytest.mark.slow
@pytest.mark.parametrize(("parts", "status"), [({"model": {"path": "nowhere"}}, 4), ({}, 9)], ids=["all", "first"])
def test_ranks_that_fail_have_their_own_status_and_none_waits(home, tmp_path, parts, status):
    """Not torchrun's 1. Only the first rank sees that the folder holds a run already; torchrun kills those that do not
    end, and then the status would be another."""
    out = tmp_path / "run"
    if not parts:
        out.mkdir()
        (out / "metrics.jsonl").write_text("")
    launched = Launched(home, out, engine={"devices": 2}, **parts)
    assert launched.ended()[0] == status, launched.printed
    assert "forcefully exiting" not in launched.printed, "torchrun waited 30 s for the second and killed it"
    assert "Traceback" not in launched.printed


@pytest.mark.parametrize(("hosts", "word"), [("a, b", r"GRPO_HOSTS names 2 \(a, b\)"), (None, "COHORT_HOSTS")])
def test_too_few_machines_are_refused(monkeypatch, tmp_path, hosts, word):
    monkeypatch.delenv("GRPO_HOSTS", raising=False)
    if hosts:
        monkeypatch.setenv("GRPO_HOSTS", hosts)
    with pytest.raises(ConfigError, match=word):
        launch.launch(config(engine={"nodes": 3}), ["train"], config_file=tmp_path)


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
    words = [sys.executable, "-m", "grpo_core.launch_part"]
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
