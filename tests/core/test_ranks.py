"""What several ranks do when one of them is not as the others: it fails alone, or it reads other files. Every rank must
leave, and the run's outcome must tell the cause, for the rules of retry go by it.

Two ranks run the real command; each has a word of its own before it.
"""

import os
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from grpo_core.distributed import launch, ranks
from grpo_core.errors import ConfigError, DataError, Interrupted, ModelError
from grpo_core.trainer import inputs as alike
from tests.processes import clean_environment

from .runs import flip, forked, outcome_of, rows, state_of, write_problems, write_state
from .tiny import config, tiny_folder

COMMAND = """
import os, sys
rank = int(os.environ["RANK"])
{before}
from grpo_core.cli.main import run_process
from grpo_core.cli.main import main
run_process(main)
"""
IN_STEP_2 = """
from grpo_core.training.single import SingleTraining
update = SingleTraining.update
def meets(self, rows, *, step, **more):
    if rank == 1 and step == 2:
        {meets}
    return update(self, rows, step=step, **more)
SingleTraining.update = meets
"""
DEFECT = IN_STEP_2.format(meets="{}['screw']")
NO_GPU = """
from grpo_core.distributed import ranks
if rank == 1:
    pick = ranks.pick_device
    ranks.pick_device = lambda wanted: pick("cuda")
import torch
torch.cuda.is_available = lambda: False
"""
"""Only the second looks for a GPU, which is not there."""
ELSEWHERE = "if rank == 1: os.chdir('../other')"
"""The second rank's machine: the same relative paths lead to other files."""


def make_home(folder, *, seed=0, lr=1e-3, answer="k"):
    tiny_folder(folder / "base", seed=seed)
    write_problems(folder / "train.jsonl", [f"say {letter}" for letter in "abcdefghij"], lambda prompt: answer)
    settings = config(engine={"threads": 1, "devices": 2}, optim={"steps": 3, "lr": lr}, checkpoints={"every": 1})
    (folder / "run.yaml").write_text(settings.to_yaml(), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return make_home(tmp_path_factory.mktemp("ranks") / "home")


def two(home, out, *words, before, status="failed"):
    """`grpo train` on two ranks; returns exit status, what was printed, and the outcome, which has this status."""
    script = out.with_suffix(".py")
    script.write_text(COMMAND.format(before=before), encoding="utf-8")
    torchrun = [sys.executable, "-m", "grpo_core.distributed.torchrun", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, str(script), "train", "run.yaml", "--out", str(out), *words],
        cwd=home,
        env={**clean_environment("GRPO_"), "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert outcome_of(out)["status"] == status, outcome_of(out)
    return done.returncode, done.stdout, outcome_of(out)


# ---------------------------------------------------------------------- one fails alone


@pytest.mark.parametrize(
    ("before", "code", "status", "steps", "words"),
    [
        # More than any machine has, truly asked for.
        (IN_STEP_2.format(meets="import torch; torch.zeros(2**55)"), "out_of_memory", 8, 1, "out of memory"),
        pytest.param(DEFECT, "internal_error", 1, 1, "KeyError: 'screw'", marks=pytest.mark.slow),
        pytest.param(NO_GPU, "model_error", 4, 0, "engine.device is cuda", marks=pytest.mark.slow),
    ],
    ids=["memory", "defect", "before all have met"],
)
def test_what_another_rank_failed_of_is_the_run_s_cause(home, tmp_path, before, code, status, steps, words):
    ended, printed, outcome = two(home, tmp_path / "run", before=before)
    assert (outcome["code"], outcome["steps_done"], ended) == (code, steps, status), printed
    assert outcome["message"].startswith(f"rank 1: {words}")
    assert ("Traceback" in printed) is (code == "internal_error")


def test_a_rank_told_to_stop_before_it_waits_does_not_wait(home, tmp_path, monkeypatch):
    """The rank alone: where two run it is chance which comes first, the signal or the waiting, in which it ends it."""
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    join = ranks.Ranks.join

    def stopped(**more):
        signal.raise_signal(signal.SIGTERM)
        return join(**more)

    monkeypatch.setattr(ranks.Ranks, "join", stopped)
    monkeypatch.setattr(ranks, "rendezvous", lambda *_: pytest.fail("it waits for the first rank"))
    monkeypatch.setattr(launch, "follow_parent", lambda: None)
    monkeypatch.chdir(home)
    log = tmp_path / "log"
    assert forked(["train", "run.yaml", "--out", str(tmp_path / "run")], log=log) == Interrupted.exit_status
    assert "asked to stop by SIGTERM" in log.read_text()


# ---------------------------------------------------------------------- all evaluate, and end early, together


OTHER_CLOCK = """
from grpo_core.trainer.evaluator import Evaluator
if rank == 1:
    Evaluator._due = lambda self, step: False
"""


def test_ranks_evaluate_while_training_and_stop_early_alike(home, tmp_path):
    """By the first one's word, each its share, and every item once. No score is better by all of the scale."""
    shutil.copytree(home, tmp_path / "home")
    write_problems(tmp_path / "home" / "heldout.jsonl", [f"say {letter}" for letter in "klm"])
    evaluated = {"path": "heldout.jsonl", "every": 1, "patience": 2, "min_delta": 1}
    parts = {"engine": {"threads": 1, "devices": 2}, "optim": {"steps": 5}, "eval": evaluated}
    (tmp_path / "home" / "run.yaml").write_text(config(**parts).to_yaml(), encoding="utf-8")
    out = tmp_path / "run"
    ended, printed, outcome = two(tmp_path / "home", out, before=OTHER_CLOCK, status="finished")
    assert (ended, outcome["code"], outcome["steps_done"]) == (0, "early_stop", 2), printed
    for step in (1, 2):
        of_step = [row for row in rows(out / "evals/during.jsonl") if row["step"] == step]
        assert [row["kind"] for row in of_step] == ["eval_item"] * 3 + ["eval_result"]
        assert len({row["problem_id"] for row in of_step[:3]}) == 3


# ---------------------------------------------------------------------- one reads other files


@pytest.mark.parametrize(
    ("what", "kind"),
    [("the config", ConfigError), ("the base model's weights", ModelError), ("the training problems", DataError)],
)
def test_inputs_that_differ_are_refused_by_their_kind(monkeypatch, what, kind):
    class Two(ranks.Ranks):
        def gather(self, value):
            return [value, {**value, what: "other"}]

    inputs = {"the base model's weights": "a", "the training problems": "b"}
    monkeypatch.setattr(alike, "inputs_of", lambda manifest: inputs)
    with pytest.raises(kind, match=what):
        alike.check_inputs_alike(Two(), SimpleNamespace(config_digest="c"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("other", "code", "status"),
    [({"seed": 1}, "model_error", 4), ({"lr": 2e-3}, "config_error", 2), ({"answer": "m"}, "data_error", 3)],
    ids=["model", "config", "data"],
)
def test_ranks_that_read_other_files_are_refused(tmp_path, other, code, status):
    """The files have the same names and sizes."""
    home = make_home(tmp_path / "home")
    make_home(tmp_path / "other", **other)
    ended, printed, outcome = two(home, tmp_path / "run", before=ELSEWHERE)
    assert (outcome["code"], ended) == (code, status), printed
    assert outcome["message"].startswith("rank 0 and rank 1 do not read the same: ")
    assert not (tmp_path / "run" / "manifest.json").exists(), "it stood on nothing"


@pytest.fixture(scope="module")
def kept(home, tmp_path_factory):
    """A checkpoint to resume from, of two ranks."""
    out = tmp_path_factory.mktemp("kept") / "run"
    assert two(home, out, before=DEFECT)[2]["steps_done"] == 1
    return out / "checkpoints" / "step-000001"


def other_manifest(folder):
    """Whole, and of another run."""
    write_state(folder, {**state_of(folder), "best": {"step": 1, "reward": 0.5}})


def other_place(folder):
    """The second rank takes itself for a machine's first, which looks at every byte."""
    flip(folder / "policy.safetensors", -1)
    return f"{ELSEWHERE}; os.environ['LOCAL_RANK'] = '0'"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other_manifest, "rank 0 and rank 1 do not read the same: the checkpoint step-000001"),
        (lambda folder: (folder / "checkpoint.json").unlink(), "rank 1: step-000001 is not a finished checkpoint"),
        (other_place, "rank 1: checkpoint step-000001: policy.safetensors was changed"),
    ],
    ids=["another", "unfinished", "changed"],
)
def test_a_rank_with_another_checkpoint_is_refused(kept, tmp_path, change, words):
    home = make_home(tmp_path / "home")
    shutil.copytree(home, tmp_path / "other")
    shutil.copytree(kept, home / "step-000001")
    before = change(shutil.copytree(kept, tmp_path / "other" / "step-000001")) or ELSEWHERE
    ended, printed, outcome = two(home, tmp_path / "run", "--resume-from", "step-000001", before=before)
    assert (outcome["code"], ended) == ("checkpoint_error", 7), printed
    assert outcome["message"].startswith(words)
