"""Whole runs that sample with a real vLLM: they learn, stop when weights do not arrive, outlive a killed server, and go
on after they were killed. `server` trains here and samples in the other environment; `colocated` does both there.
"""

import os
import signal
import sys

import pytest
from safetensors.torch import load_file

from tests.core.runs import far, metrics_of, outcome_of, weights_of
from tests.core.sampler_vllm.small import Run, make_home, servers, settings
from tests.needs import needs
from tests.processes import wait_for

pytestmark = pytest.mark.vllm
PLACES = ["server", "colocated"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    needs("vllm")
    return make_home(tmp_path_factory.mktemp("home"))


@pytest.fixture(autouse=True)
def nothing_left():
    before = set(servers())
    yield
    wait_for(lambda: set(servers()) <= before, lambda: f"servers are left: {set(servers()) - before}")


def moved(home, out):
    """Largest change of any weight that the run has made."""
    return far(load_file(home / "base" / "model.safetensors"), weights_of(out))


@pytest.mark.parametrize("place", PLACES)
def test_a_run_learns_and_every_push_arrives(home, tmp_path, place):
    evaluated = {"eval": {"holdout": 2, "before": True, "after": True}}
    run = Run(home, tmp_path / f"{place}-learns", settings(place, optim={"steps": 12, "lr": 0.003}, **evaluated))
    assert run.ended() == 0, run.printed
    steps = metrics_of(run.out)
    assert len(steps) == 12
    assert moved(home, run.out) > 0.005
    pushes = [step["vllm/probe_difference"] for step in steps if "vllm/push_seconds" in step]
    assert len(pushes) >= 11  # the first step's weights came before the evaluation
    assert max(pushes) < 1e-4
    compared = [step for step in steps if "sampling/logp_difference/max" in step]
    assert len(compared) >= 6
    assert max(step["sampling/logp_difference/max"] for step in compared) < 1e-3
    assert all("sampling/truncated_share" in step for step in compared)
    rewards = [step["reward"] for step in steps]
    assert sum(rewards[-3:]) > sum(rewards[:3]), rewards
    assert "Traceback" not in run.log.read_text()


@pytest.mark.parametrize(
    ("place", "fault", "step"),
    [("server", "@2", 1), ("colocated", "@2", 1), ("server", "", 0)],  # the first push is judged too
)
def test_a_push_that_leaves_layers_out_stops_the_run(home, tmp_path, place, fault, step):
    run = Run(home, tmp_path / f"{place}-broken-{step}", settings(place), fault=f"vllm:drops-linear{fault}")
    assert run.ended() == 11, run.printed
    ended = outcome_of(run.out)
    assert (ended["status"], ended["code"], ended["steps_done"]) == ("failed", "rollout_error", step)
    assert f"after step {step} have not arrived" in ended["message"]


def test_a_server_killed_while_it_samples_is_started_again_once_a_step(home, tmp_path):
    """Each server dies at its second request for completions: in steps 2 and 3, once in each."""
    run = Run(home, tmp_path / "again", settings("server"), fault="vllm:server:generate@2")
    assert run.ended() == 0, run.printed
    assert run.log.read_text().count("killed by SIGKILL") == 2
    undisturbed = Run(home, tmp_path / "undisturbed", settings("server"))
    assert undisturbed.ended() == 0
    assert [step["reward"] for step in metrics_of(run.out)] == [step["reward"] for step in metrics_of(undisturbed.out)]


@pytest.mark.parametrize("point", ["vllm:server:generate", "vllm:server:part"])
def test_a_server_that_dies_twice_in_a_step_ends_the_run(home, tmp_path, point):
    run = Run(home, tmp_path / f"twice-{point[-4:]}", settings("server"), fault=point)
    assert run.ended() == 11, run.printed
    assert "for the second time in this step" in outcome_of(run.out)["message"]


@pytest.mark.parametrize(
    ("place", "engine", "point"),
    [
        ("server", {}, "vllm:asked:1"),  # in step 2, beside a server that works
        ("colocated", {}, "vllm:asked:1"),
        ("server", {"one_step_off": True}, "drawn:3"),  # in step 2, with the next step's completions in hand
        ("server", {"one_step_off": True}, "waiting:2"),
    ],
)
def test_a_killed_run_goes_on_from_its_checkpoint(home, tmp_path, place, engine, point):
    """It loses the step in hand, and does again what an undisturbed run does."""
    config, out = settings(place, engine=engine), tmp_path / "killed"
    killed = Run(home, out, config, fault=point)
    assert killed.ended() == -signal.SIGKILL, killed.printed
    wait_for(lambda: not servers(), "the server outlives its trainer")
    assert max(path.name for path in (out / "checkpoints").glob("step-*")) == "step-000001"
    again, undisturbed = Run(home, out, config, "--resume"), Run(home, tmp_path / "undisturbed", config)
    assert (again.ended(), undisturbed.ended()) == (0, 0), again.printed + undisturbed.printed
    assert outcome_of(again.out)["status"] == "finished"
    assert [step["reward"] for step in metrics_of(again.out)] == [
        step["reward"] for step in metrics_of(undisturbed.out)
    ]
    ages = [step["sampling/staleness"] for step in metrics_of(again.out) if "sampling/staleness" in step]
    assert ages == ([0, 1, 1] if engine else [])
    assert far(weights_of(out), weights_of(undisturbed.out)) < 1e-5
    assert moved(home, out) > 1e-3


def test_drawing_ahead_a_server_that_ends_ends_the_run(home, tmp_path):
    """What it was asked for belongs to a policy that has moved on by then."""
    config = settings("server", engine={"one_step_off": True})
    run = Run(home, tmp_path / "ahead", config, fault="vllm:server:generate@2")
    assert run.ended() == 11, run.printed
    assert outcome_of(run.out)["code"] == "rollout_error"


def test_a_wish_to_stop_is_heard_while_the_server_starts(home, tmp_path):
    run = Run(home, tmp_path / "stopped", settings("server"))
    run.until("a vLLM server starts")
    run.process.send_signal(signal.SIGTERM)
    assert run.ended() == 75, run.printed
    assert outcome_of(run.out)["status"] == "stopped"


def test_a_wish_to_stop_that_reaches_all_processes_is_no_failure(home, tmp_path):
    """As a terminal or a worker sends it; the server waits for what its trainer decides."""
    run = Run(home, tmp_path / "group", settings("server", optim={"steps": 10_000}))
    run.until("step 1/")
    for pid in [*servers(), run.process.pid]:
        os.kill(pid, signal.SIGTERM)
    assert run.ended() == 75, run.printed
    assert outcome_of(run.out)["code"] == "interrupted"


@pytest.mark.parametrize("place", PLACES)
def test_two_ranks(home, tmp_path, place):
    """With a server the first rank asks for both; colocated each has an engine of its own."""
    run = Run(home, tmp_path / f"{place}-ranks", settings(place, engine={"devices": 2}))
    assert run.ended() == 0, run.printed
    assert max(step["vllm/probe_difference"] for step in metrics_of(run.out)) < 1e-4
    assert moved(home, run.out) > 1e-4


def test_without_vllm_a_colocated_run_is_refused(home, tmp_path, monkeypatch):
    """By this interpreter, which has none."""
    monkeypatch.setattr("tests.core.sampler_vllm.small.VLLM_PYTHON", sys.executable)
    run = Run(home, tmp_path / "none", settings("colocated"))
    assert run.ended() == 11, run.printed
    assert outcome_of(run.out)["code"] == "rollout_error"
    assert "Traceback" not in run.printed
