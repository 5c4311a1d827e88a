"""engine.torch_compile: layers compiled for learning give what they gave before, and nothing else is compiled."""

from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor

from grpo_core.errors import ModelError
from grpo_core.model.layers import compile_layers, recompute_layers
from grpo_core.model.logprobs import completion_terms
from tests.needs import needs
from tests.processes import grpo

from .runs import far, metrics_of, setting, weights_of
from .test_layouts import COMPLETIONS, FAMILIES, PROMPTS, make, run, same


@pytest.fixture(autouse=True)
def nothing_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of other tests, in this process or on the disk."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    torch._dynamo.reset()
    counters.clear()


def compiled() -> int:
    """How many pieces of code were compiled since the test began, the trial's among them."""
    return int(counters["stats"]["unique_graphs"])


@pytest.mark.slow
def test_compiled_layers_give_the_same_and_only_learning_uses_them() -> None:
    needs("c++")
    model = make(FAMILIES["qwen 2, grouped heads"])
    expected = run(model, "right")
    compile_layers(model)
    with torch.no_grad():
        completion_terms(model, PROMPTS, COMPLETIONS, layout="shared")
    assert compiled() == 1, "the trial alone"
    same(run(model, "shared"), expected)
    once = compiled()
    assert once > 1
    for more in range(1, 4):  # layers, and rows of any size, share what was compiled
        longer = [completion * (more + 1) for completion in COMPLETIONS[more:]]
        completion_terms(model, PROMPTS[more:], longer, layout="shared").logprobs_N.sum().backward()
    assert compiled() == once
    recompute_layers(model)
    same(run(model, "shared"), expected)
    same(run(model, "right"), expected)


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor.cpp, "cxx", ("/nonexistent/c++",))
    with pytest.raises(
        ModelError, match=r"engine.torch_compile: .*needs a C\+\+ compiler .*or switch torch_compile off"
    ):
        compile_layers(make(FAMILIES["qwen 2, grouped heads"]))


@pytest.mark.slow
def test_a_run_learns_what_it_learns_without(runs_home: Path, tmp_path: Path) -> None:
    """fp32's rounding apart; with adapters, recomputed layers, and a sampler that draws meanwhile from a copy."""
    needs("c++")
    trained = []
    for name, engine in (("without", {}), ("with", {"torch_compile": True})):
        out = tmp_path / name
        config = setting(runs_home, "ahead-lora").write(engine=engine, model={"dtype": "float32"})
        grpo("train", str(config), "--out", str(out))
        trained.append(([metrics["loss"] for metrics in metrics_of(out)], weights_of(out)))
    (losses, weights), (others, other_weights) = trained
    assert others == pytest.approx(losses, abs=1e-5)
    assert far(weights, other_weights) <= 1e-5
