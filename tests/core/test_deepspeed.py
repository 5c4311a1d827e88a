"""DeepSpeed learns what one plain process learns, at every stage of ZeRO, whatever its ranks have to do.

Real runs through torchrun; the plain engine's are the measure. What neither may get wrong has tests of its own, with
numbers from closed forms (test_trainer_update.py).
"""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from grpo_core.errors import ConfigError
from grpo_core.training.deepspeed import load_deepspeed
from grpo_core.training.deepspeed_settings import settings
from tests.needs import DEEPSPEED_PYTHON, needs
from tests.tables import FOLDER

from .deepspeed_runs import alike, engine, far, metrics, surroundings, train, weights
from .runs import PLAIN, Setting, make_home, merged, rows
from .tiny import config

real = pytest.mark.deepspeed

WORKS: dict[str, dict[str, object]] = yaml.safe_load((FOLDER / "trainer/deepspeed.yaml").read_text())["works"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs("deepspeed")
    made = make_home(tmp_path_factory.mktemp("deepspeed"))
    model = AutoModelForCausalLM.from_pretrained(made / "base", tie_word_embeddings=True)
    model.tie_weights()
    model.save_pretrained(made / "tied")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (made / "tied" / name).write_bytes((made / "base" / name).read_bytes())
    return made


def work(home: Path, name: str, case: str) -> Setting:
    return Setting(home, f"{name}-{case}", merged(merged(PLAIN, WORKS[name]), {"eval": {"before": False}}))


@pytest.fixture(scope="module")
def plain(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run of one plain process."""

    @cache
    def of(name: str) -> Path:
        out = tmp_path_factory.mktemp("plain") / name
        assert work(home, name, "plain").train(out) == 0
        return out

    return of


# ---------------------------------------------------------------------- the same losses and weights


def shape(parts: dict[str, Any]) -> tuple[object, ...]:
    """Stage, offload and ranks."""
    chosen = parts["engine"]
    return chosen["deepspeed"]["zero_stage"], chosen["deepspeed"]["offload"], chosen["devices"]


@real
@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("full", engine(1)),
        ("full", engine(2)),
        ("full", engine(3)),
        ("full", engine(3, ranks=1)),
        ("full", engine(2, offload="optimizer")),
        ("full", engine(3, offload="all", gradient_checkpointing=True)),
        ("idle", engine(2, ranks=3)),
        ("idle", engine(3, ranks=3)),  # no weight's size divides by 3: the last parts are filled up
        ("lora", engine(2)),
        ("lora", engine(3)),
        ("tied", engine(3)),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, shape(value))),
)
def test_it_learns_what_one_plain_process_learns(home, plain, tmp_path, name, parts):
    done = train(work(home, name, "deepspeed"), tmp_path / "run", **parts)
    assert done.status == 0, done.printed
    alike(tmp_path / "run", plain(name))
    told = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert told["platform"]["ranks"] == parts["engine"]["devices"]  # type: ignore[index]
    told = [row["message"] for row in rows(tmp_path / "run" / "events.jsonl") if row.get("type") == "loaded"]
    assert told == [row["message"] for row in rows(plain(name) / "events.jsonl") if row.get("type") == "loaded"]


@real
@pytest.mark.parametrize("stage", [1, 3])
def test_bf16_weights_have_fp32_copies(home: Path, plain: Callable[[str], Path], tmp_path: Path, stage: int) -> None:
    """One step, before a rounded weight can lead to another sample. The checkpoint's weights are the copies: finer than
    bf16, and the plain engine's but for gradients that were rounded in another order."""
    done = train(work(home, "bf16", "deepspeed"), tmp_path / "run", **engine(stage))
    assert done.status == 0, done.printed
    (row,), (told,) = metrics(tmp_path / "run"), metrics(plain("bf16"))
    assert row["loss"] == pytest.approx(told["loss"], abs=1e-4)
    assert row["grad_norm"] == pytest.approx(told["grad_norm"], rel=2e-2)
    lr = 0.0005
    assert far(weights(tmp_path / "run"), weights(plain("bf16"))) <= 2 * lr + 2**-7
    exact = load_file(tmp_path / "run/checkpoints/step-000001/policy.safetensors")
    assert all(value.dtype == torch.float32 for value in exact.values())
    assert any((value != value.bfloat16().float()).any() for value in exact.values())
    mine, other = _moved(tmp_path / "run"), _moved(plain("bf16"))
    assert (other.abs() > 0.9 * lr).float().mean() > 0.5, "AdamW's first step is lr in each weight that has a gradient"
    assert ((mine - other).abs() < 0.1 * lr).float().mean() > 0.95, "by its sign, which rounding turns in the smallest"


def _moved(out: Path) -> torch.Tensor:
    """All weights' way in the first step."""
    before, after = (load_file(out / f"checkpoints/step-00000{step}/policy.safetensors") for step in (0, 1))
    return torch.cat([(after[name] - before[name]).flatten() for name in sorted(before)])


# ---------------------------------------------------------------------- what only shows inside


@real
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_one_rank_from_within(home: Path, stage: int) -> None:
    """Its first step, which makes the moments, changes nothing and counts for nothing; the norm is there before the
    step, DeepSpeed's own after it; weights are whole inside `whole`, and stay so when the model is called."""
    done = subprocess.run(
        [str(DEEPSPEED_PYTHON), "-m", "tests.core.deepspeed_alone", str(home / "base"), str(stage)],
        env=surroundings(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["norm"] > 0.5, "it was to be clipped"
    assert told.pop("norm") == pytest.approx(told.pop("norm_of_deepspeed"), rel=1e-6)
    held = 2 * 9 + 3  # weights: nine in each of two layers, embedding, last norm, output layer
    assert told == {
        "moments_before": 0,
        "moved_by_opening": False,
        "moved_by_step": True,
        "moments_after": 3 * held,
        "steps": [1.0],
        "sizes_inside": True,
        "still_whole_after_a_call": True,
        "newest_inside": True,
        "norm_of_no_number": True,
    }


# ---------------------------------------------------------------------- what it is told, and refusals


def test_deepspeed_gets_what_the_config_says() -> None:
    parts: dict[str, object] = {"optim": {"max_grad_norm": 0.3}, "model": {"path": "base", "dtype": "bfloat16"}}
    given = settings(config(**parts, **engine(3, offload="all")))
    assert given["gradient_clipping"] == 0.3
    assert given["bf16"] == {"enabled": True}
    zero = given["zero_optimization"]
    assert (zero["stage"], zero["offload_optimizer"]["device"], zero["offload_param"]["device"]) == (3, "cpu", "cpu")
    assert settings(config(**engine(1)))["zero_optimization"] == {"stage": 1}


def test_without_deepspeed_or_with_a_critic_the_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(ConfigError, match="pip install"):
        load_deepspeed(torch.device("cpu"))
    with pytest.raises(ConfigError, match="critic"):
        config(**engine(2), algorithm={"advantage": "gae", "scale": "batch_std"})
