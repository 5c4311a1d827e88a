"""More than one machine, on two hosts made of network namespaces: one run over both, and a worker on each.

What is shared is the disk; processes, addresses and loopback are each host's own.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.chaos.hosts import HERE, JOINED, Host, hosts, over_both
from tests.chaos.stand import Stand, standing
from tests.core.tiny import config
from tests.needs import needs
from tests.processes import belonging_to, wait_for

pytestmark = pytest.mark.chaos
Say = Callable[[str], None]

OVER_BOTH: dict[str, Any] = {
    "engine": {"device": "cpu", "nodes": 2, "threads": 1},
    "eval": {"holdout": 4, "every": 2},
    "optim": {"steps": 4},
    "sampling": {"group_size": 4, "prompts_per_step": 2, "max_completion_tokens": 8},
}


@pytest.fixture(scope="module")
def pair() -> Iterator[list[Host]]:
    needs("namespaces")
    with hosts(2) as made:
        yield made


@pytest.fixture
def home(tmp_path: Path, tiny_model: Path) -> Path:
    """A config's folder, on the disk that both hosts share."""
    (tmp_path / "base").symlink_to(tiny_model)
    rows = [{"prompt": f"say {letter}", "answer": "k"} for letter in "abcdefghij"]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return tmp_path


def train(home: Path, pair: list[Host], *, steps: int) -> "subprocess.Popen[str]":
    path = home / "run.yaml"
    path.write_text(config(engine={"nodes": 2, "threads": 1}, optim={"steps": steps, "lr": 1e-3}).to_yaml())
    words = [sys.executable, "-P", "-m", "grpo_core.cli.main", "train", str(path), "--out", str(home / "out")]
    with (home / "printed.txt").open("w") as log:
        files: Any = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        return subprocess.Popen(pair[0].words(words), env=over_both(pair), text=True, **files)


def printed(home: Path) -> str:
    return (home / "printed.txt").read_text(encoding="utf-8")


def ranks(folder: Path) -> dict[int, psutil.Process]:
    """Live trainers whose command or environment names the folder, by rank."""
    trainers = {}
    for process in belonging_to(folder):
        with suppress(psutil.NoSuchProcess):
            if "grpo_core.cli.main" in process.cmdline() and (rank := process.environ().get("RANK")):
                trainers[int(rank)] = process
    return trainers


def network(process: psutil.Process) -> str:
    """The namespace that a process is in."""
    return os.readlink(f"/proc/{process.pid}/ns/net")


def test_a_host_that_dies_ends_the_run_on_the_other(pair: list[Host], home: Path) -> None:
    process = train(home, pair, steps=1_000_000)
    wait_for(lambda: "step 1/" in printed(home), lambda: printed(home), process)
    held = ranks(home)
    inside = subprocess.check_output(["ip", "netns", "pids", pair[1].name], text=True).split()
    assert str(held[1].pid) in inside
    for pid in inside:
        os.kill(int(pid), signal.SIGKILL)
    assert process.wait() != 0
    assert f"the part on {pair[1].name} ended" in printed(home)
    wait_for(lambda: not ranks(home), lambda: printed(home))
    outcome = json.loads((home / "out" / "outcome.json").read_text())
    assert (outcome["status"], outcome["code"]) == ("failed", "nccl_error")


@pytest.fixture
def stand(pair: list[Host], tiny_model: Path) -> Iterator[Stand]:
    """The platform on this machine, listening on the bridge."""
    with standing(model=tiny_model, lease=20, address=HERE) as made:
        yield made


def test_a_worker_on_each_host_trains_a_run_of_its_own(pair: list[Host], stand: Stand, say: Say) -> None:
    workers = [stand.add_worker(JOINED, before=host.words([])) for host in pair]
    settings = {**OVER_BOTH, "engine": {"device": "cpu", "threads": 1}, "optim": {"steps": 1_000_000}}
    runs = [stand.launch(settings) for _ in pair]
    for run in runs:
        stand.wait(run, lambda row: row["step"] > 2, "it trains")
    nodes = {attempt["node_id"] for run in runs if (attempt := stand.live_attempt(run))}
    networks = {network(trainer) for worker in workers for trainer in stand.processes("trainer", worker.name)}
    for run in runs:
        stand.cancel(run)
    for worker in workers:
        worker.stop()
    assert len(nodes) == 2, "both at once, each on a node of its own"
    assert len(networks) == 2, "on a host of its own"
    say("two workers on two hosts: 2 runs at once, on 2 nodes")


def test_a_worker_trains_one_run_over_both_hosts(pair: list[Host], stand: Stand, say: Say) -> None:
    first, second = pair
    more = {**JOINED, "COHORT_HOSTS": f"{first.address},{second.name}", "COHORT_REMOTE_SHELL": "ip netns exec"}
    worker = stand.add_worker(more, before=first.words([]))
    run = stand.launch({**OVER_BOTH, "optim": {"steps": 40}})
    folder = stand.runs(worker.name)
    both = wait_for(lambda: len(trainers := ranks(folder)) == 2 and trainers, lambda: stand.story(run))
    networks = {network(trainer) for trainer in both.values()}
    stand.wait_trained(run)
    assert len({*networks, os.readlink("/proc/self/ns/net")}) == 3, "each rank on a host of its own"
    assert stand.one("SELECT max(step) FROM runs_stepmetric WHERE run_id = %s", run) == 40
    assert ranks(folder) == {}

    endless = stand.launch({**OVER_BOTH, "optim": {"steps": 1_000_000}})
    stand.wait(endless, lambda row: row["step"] > 1, "it trains")
    stand.cancel(endless)
    assert ranks(folder) == {}, "no rank is left on either host"
    worker.stop()
    say("one run over two hosts by a worker: 40 steps, cancelled run left 0 processes")
