"""Checkpoints of runs with DeepSpeed: any engine, stage and number of ranks goes on from them, and a run that is killed
loses the step in hand and no more."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.needs import needs
from tests.processes import below, lives, wait_for

from .deepspeed_runs import alike, command, engine, far, surroundings, train, weights
from .runs import PLAIN, Setting, make_home, merged, names_of_steps, rows, warnings_of

pytestmark = pytest.mark.deepspeed
SAME = 1e-6
"""Largest difference of a weight after the same steps."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs("deepspeed")
    return make_home(tmp_path_factory.mktemp("deepspeed"))


@pytest.fixture(scope="module")
def setting(home: Path) -> Setting:
    return Setting(home, "resumed", merged(PLAIN, {"optim": {"weight_decay": 0.1}}))


@pytest.fixture(scope="module")
def whole(setting: Setting, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """The run that nobody killed, in one plain process."""

    @cache
    def made() -> Path:
        out = tmp_path_factory.mktemp("whole") / "run"
        assert setting.train(out) == 0
        return out

    return made


def test_a_checkpoint_goes_from_engine_to_engine(setting: Setting, whole: Callable[[], Path], tmp_path: Path) -> None:
    """One plain process, then ZeRO 3 on two ranks, then ZeRO 1 on one, then plain again, a step each."""
    out = tmp_path / "run"
    assert setting.train(out, fault="step:2") == -signal.SIGKILL
    for parts, point in ((engine(3), "step:3"), (engine(1, ranks=1), "step:4")):
        assert train(setting, out, "--resume", fault=point, **parts).status == -signal.SIGKILL
    assert setting.train(out, "--resume") == 0
    alike(out, whole())
    assert far(weights(out), weights(whole())) <= SAME
    for name in ("engine.training", "engine.deepspeed.zero_stage"):
        assert any(name in line for line in warnings_of(out))


@pytest.mark.parametrize(
    ("parts", "point", "last"),
    [
        (engine(1), "updating:3", "step-000002"),
        (engine(2, offload="optimizer"), "updating:3", "step-000002"),
        (engine(3, offload="all"), "checkpoint:filled@3", "step-000001"),  # the third: of step 2
        (engine(2), "step:1", "step-000000"),  # before there are moments
    ],
    ids=["zero1", "zero2-offload", "zero3-offload", "zero2-first-step"],
)
def test_a_killed_rank_costs_the_step_in_hand(setting, whole, tmp_path, parts, point, last):
    out = tmp_path / "run"
    assert train(setting, out, fault=point, **parts).status == -signal.SIGKILL
    assert names_of_steps(out)[-1] == last
    done = train(setting, out, "--resume", **parts)
    assert done.status == 0, done.printed
    assert f"goes on from checkpoints/{last}" in done.printed
    alike(out, whole())


def test_with_torchrun_its_ranks_end_and_the_run_goes_on_from_there(setting: Setting, tmp_path: Path) -> None:
    out = tmp_path / "run"
    said = tmp_path / "said"
    endless = merged({"optim": {"steps": 1_000_000}}, engine(2))
    with said.open("w") as printed:
        launched = subprocess.Popen(
            command(setting, out, **endless),
            env=surroundings(),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
        )
    wait_for(lambda: "step 3/" in said.read_text(), said.read_text, launched)
    ranks = below(launched.pid)
    assert len(ranks) >= 2
    os.kill(launched.pid, signal.SIGKILL)
    assert launched.wait() == -signal.SIGKILL
    wait_for(lambda: not any(map(lives, ranks)), said.read_text)
    reached = max(int(str(row["step"])) for row in rows(out / "metrics.jsonl"))
    kept = int(names_of_steps(out)[-1].removeprefix("step-"))
    assert reached - kept <= 1
    more = merged({"optim": {"steps": kept + 2}}, engine(2))
    done = train(setting, out, "--resume", **more)
    assert done.status == 0, done.printed
    outcome = json.loads((out / "outcome.json").read_text())
    assert (outcome["status"], outcome["steps_done"]) == ("finished", kept + 2)
