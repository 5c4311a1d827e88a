"""DeepSpeed learns what one plain process learns, at every stage of ZeRO, whatever its ranks have to do; any engine,
stage and number of ranks resumes from its checkpoints, and a run that is killed loses the step in hand and no more.

Real runs through torchrun; the plain engine's are the measure. What neither may get wrong has tests of its own, with
numbers from closed forms (test_trainer_update.py).
"""

import json
import subprocess
import sys
from functools import cache

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from grpo_core.errors import ConfigError
from grpo_core.training.deepspeed import load_deepspeed, settings
from tests.needs import DEEPSPEED_PYTHON, needs
from tests.processes import clean_environment, lives, wait_for
from tests.tables import FOLDER

from .deepspeed_runs import alike, engine, metrics, train
from .runs import (
    KILLED,
    PLAIN,
    Launched,
    Setting,
    far,
    forked,
    make_home,
    merged,
    names_of_steps,
    outcome_of,
    rows,
    warnings_of,
    weights_of,
)
from .tiny import config

real = pytest.mark.deepspeed
TABLE = yaml.safe_load((FOLDER / "trainer/deepspeed.yaml").read_text(encoding="utf-8"))
SAME = 1e-6
"""Largest difference of a weight after the same steps."""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    needs("deepspeed")
    made = make_home(tmp_path_factory.mktemp("deepspeed"))
    model = AutoModelForCausalLM.from_pretrained(made / "base", tie_word_embeddings=True)
    model.tie_weights()
    model.save_pretrained(made / "tied")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (made / "tied" / name).write_bytes((made / "base" / name).read_bytes())
    return made


def work(home, name, case="deepspeed"):
    return Setting(home, f"{name}-{case}", merged(merged(PLAIN, TABLE["works"][name]), {"eval": {"before": False}}))


@pytest.fixture(scope="module")
def plain(home, tmp_path_factory):
    """The run of one plain process."""

    @cache
    def of(name):
        out = tmp_path_factory.mktemp("plain") / name
        assert work(home, name, "plain").train(out) == 0
        return out

    return of


# ---------------------------------------------------------------------- the same losses and weights


def case_id(case):
    """The model or the kill's point, and the engine's settings: full-2."""
    return "-".join(map(str, [case.get("name") or case["point"], *case["engine"].values()]))


@real
@pytest.mark.parametrize("case", TABLE["learns"], ids=case_id)
def test_it_learns_what_one_plain_process_learns(home, plain, tmp_path, case):
    name, parts = case["name"], engine(**case["engine"])
    done = train(work(home, name), tmp_path / "run", **parts)
    assert done.ended() == 0, done.printed
    alike(tmp_path / "run", plain(name))
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["platform"]["ranks"] == parts["engine"]["devices"]
    ours, theirs = (rows(out / "events.jsonl") for out in (tmp_path / "run", plain(name)))
    loaded = [[row["message"] for row in events if row.get("type") == "loaded"] for events in (ours, theirs)]
    assert loaded[0] == loaded[1]


@real
@pytest.mark.parametrize("stage", [1, 3])
def test_bf16_weights_have_fp32_copies(home, plain, tmp_path, stage):
    """One step, before a rounded weight can lead to another sample. The checkpoint's weights are the copies: finer than
    bf16, and the plain engine's but for gradients that were rounded in another order."""
    done = train(work(home, "bf16"), tmp_path / "run", **engine(stage))
    assert done.ended() == 0, done.printed
    (ours,), (theirs,) = metrics(tmp_path / "run"), metrics(plain("bf16"))
    assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-4)
    assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=2e-2)
    lr = 0.0005
    assert far(weights_of(tmp_path / "run"), weights_of(plain("bf16"))) <= 2 * lr + 2**-7
    exact = load_file(tmp_path / "run/checkpoints/step-000001/policy.safetensors")
    assert all(value.dtype == torch.float32 for value in exact.values())
    assert any((value != value.bfloat16().float()).any() for value in exact.values())
    mine, other = _moved(tmp_path / "run"), _moved(plain("bf16"))
    assert (other.abs() > 0.9 * lr).float().mean() > 0.5, "AdamW's first step is lr in each weight that has a gradient"
    assert ((mine - other).abs() < 0.1 * lr).float().mean() > 0.95, "by its sign, which rounding turns in the smallest"


def _moved(out):
    """All weights' way in the first step."""
    before, after = (load_file(out / f"checkpoints/step-00000{step}/policy.safetensors") for step in (0, 1))
    return torch.cat([(after[name] - before[name]).flatten() for name in sorted(before)])


@real
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_one_rank_from_within(home, stage):
    """Its first step, which makes the moments, changes nothing and counts for nothing; the norm is there before the
    step, DeepSpeed's own after it; weights are whole inside `whole`, and stay so when the model is called."""
    words = [str(DEEPSPEED_PYTHON), "-m", "tests.core.deepspeed_alone", str(home / "base"), str(stage)]
    environment = {**clean_environment("GRPO_"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["norm"] > 0.5, "it was to be clipped"
    assert report.pop("norm") == pytest.approx(report.pop("norm_of_deepspeed"), rel=1e-6)
    held = 2 * 9 + 3  # weights: nine in each of two layers, embedding, last norm, output layer
    changes = {"moved_by_opening": False, "moved_by_step": True}
    moments = {"moments_before": 0, "moments_after": 3 * held, "steps": [1.0]}
    inside = dict.fromkeys(("sizes_inside", "still_whole_after_a_call", "newest_inside"), True)
    assert report == {**changes, **moments, **inside, "norm_of_no_number": True}


# ---------------------------------------------------------------------- checkpoints


@real
def test_a_checkpoint_goes_from_engine_to_engine(home, plain, tmp_path):
    """One plain process, then ZeRO 3 on two ranks, then ZeRO 1 on one, then plain again, a step each."""
    out, run = tmp_path / "run", work(home, "resumed")
    assert run.train(out, fault="step:2") == KILLED
    for parts, point in ((engine(3), "step:3"), (engine(1, ranks=1), "step:4")):
        assert train(run, out, "--resume", fault=point, **parts).ended() == KILLED
    assert run.train(out, "--resume") == 0
    alike(out, plain("resumed"))
    assert far(weights_of(out), weights_of(plain("resumed"))) <= SAME
    for name in ("engine.training", "engine.deepspeed.zero_stage"):
        assert any(name in line for line in warnings_of(out))


@real
@pytest.mark.parametrize("case", TABLE["kills"], ids=case_id)
def test_a_killed_rank_costs_the_step_in_hand(home, plain, tmp_path, case):
    out, run, parts = tmp_path / "run", work(home, "resumed"), engine(**case["engine"])
    assert train(run, out, fault=case["point"], **parts).ended() == KILLED
    assert names_of_steps(out)[-1] == case["last"]
    done = train(run, out, "--resume", **parts)
    assert done.ended() == 0, done.printed
    assert f"resumes from checkpoints/{case['last']}" in done.printed
    alike(out, plain("resumed"))


@real
def test_with_torchrun_its_ranks_end_and_the_run_goes_on_from_there(home, tmp_path):
    out, run = tmp_path / "run", work(home, "resumed")
    launched = train(run, out, **merged({"optim": {"steps": 1_000_000}}, engine(2)))
    ranks = launched.until("step 3/")
    assert len(ranks) >= 2
    launched.process.kill()
    assert launched.ended() == KILLED
    wait_for(lambda: not any(map(lives, ranks)), lambda: launched.printed)
    reached = max(int(str(row["step"])) for row in rows(out / "metrics.jsonl"))
    kept = int(names_of_steps(out)[-1].removeprefix("step-"))
    assert reached - kept <= 1
    done = train(run, out, "--resume", **merged({"optim": {"steps": kept + 2}}, engine(2)))
    assert done.ended() == 0, done.printed
    assert (outcome_of(out)["status"], outcome_of(out)["steps_done"]) == ("finished", kept + 2)


# ---------------------------------------------------------------------- its settings, and without it


def test_deepspeed_gets_what_the_config_says():
    parts = {"optim": {"max_grad_norm": 0.3}, "model": {"path": "base", "dtype": "bfloat16"}}
    given = settings(config(**parts, **engine(3, offload="all")))
    assert given["gradient_clipping"] == 0.3
    assert given["bf16"] == {"enabled": True}
    zero = given["zero_optimization"]
    assert (zero["stage"], zero["offload_optimizer"]["device"], zero["offload_param"]["device"]) == (3, "cpu", "cpu")
    assert settings(config(**engine(1)))["zero_optimization"] == {"stage": 1}


def test_without_deepspeed_the_run_is_refused(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(ConfigError, match="pip install"):
        load_deepspeed(torch.device("cpu"))


# ---------------------------------------------------------------------- fine-tuning


@real
@pytest.mark.parametrize("stage", [2, 3])
def test_fine_tuning_is_the_plain_one_s(home, tmp_path, stage):
    """Weights and losses, that on held-out conversations too, on two ranks."""
    lines = [json.dumps({"prompt": f"say {letter}", "completion": letter * 3}) for letter in "abcdefghij"]
    (home / "conversations.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    fields = {
        "kind": "sft",
        "model": {"path": "base"},
        "data": {"path": "conversations.jsonl", "holdout": 2},
        "optim": {"steps": 3, "batch_size": 3, "lr": 1e-3},
        "eval": {"every": 2},
    }
    (home / "sft.yaml").write_text(yaml.safe_dump({**fields, "engine": {"threads": 1}}), encoding="utf-8")
    assert forked(["train", str(home / "sft.yaml"), "--out", str(tmp_path / "plain")]) == 0
    path = home / f"sft-{stage}.yaml"
    path.write_text(yaml.safe_dump({**fields, **engine(stage, threads=1)}), encoding="utf-8")
    done = Launched(path, tmp_path / "run", python=DEEPSPEED_PYTHON)
    assert done.ended() == 0, done.printed
    alike(tmp_path / "run", tmp_path / "plain")
