"""A very small Qwen2 that vLLM takes on a CPU (its attention wants heads of 32), and runs of the real command with it.

A folder of the tests named like a package (`vllm`) would count as one for libraries that look for it.
"""

import sys
from pathlib import Path
from typing import Any

import psutil
import torch
import yaml
from transformers import Qwen2Config, Qwen2ForCausalLM

from grpo_core.model.load import LoadedModel
from grpo_core.model.tiny import byte_tokenizer
from tests.core.runs import Launched, digit, write_problems
from tests.needs import VLLM_PYTHON
from tests.tables import FOLDER

ROWS = 320
"""More than the tokenizer has: transformers gives a Qwen2 folder Qwen's own, which adds a token."""


def qwen_folder(folder: Path, *, tied: bool, seed: int = 0) -> Path:
    """A random Qwen2 with biases; what it likes best to say are digits and the end."""
    tokenizer = byte_tokenizer()
    config = Qwen2Config(
        vocab_size=ROWS,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.125,
        tie_word_embeddings=tied,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = Qwen2ForCausalLM(config)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith("bias"):
                    weight.normal_(0, 0.1)
            if not tied:
                likely = [*tokenizer.convert_tokens_to_ids(list("0123456789")), tokenizer.eos_token_id]
                directions = torch.randn((len(likely), config.hidden_size))
                model.lm_head.weight.zero_()[likely] = directions * 0.6
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    # What a model's own generation config says must not change how it is sampled from.
    model.generation_config.update(do_sample=True, top_k=2, temperature=0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_home(folder: Path) -> Path:
    """A model `base` and problems whose answers are digits."""
    qwen_folder(folder / "base", tied=False)
    write_problems(folder / "train.jsonl", [f"say {letter}" for letter in "abcdefg"], digit)
    return folder


def settings(place: str, **parts: dict[str, Any]) -> dict[str, Any]:
    """A run's config; `parts` are put over it, part by part."""
    base = yaml.safe_load((FOLDER / "trainer/vllm.yaml").read_text(encoding="utf-8"))
    merged = {name: {**base.get(name, {}), **parts.get(name, {})} for name in base.keys() | parts.keys()}
    merged["engine"]["vllm"] = {"place": place, "eager": True, "tolerance": 1e-4, **merged["engine"].get("vllm", {})}
    return merged


class Run(Launched):
    """`grpo train` with a real vLLM, in the environment that its place asks for."""

    def __init__(self, home: Path, out: Path, config: dict[str, Any], *words: str, fault: str = "") -> None:
        path = home / f"{out.name}.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        python = VLLM_PYTHON if config["engine"]["vllm"]["place"] == "colocated" else sys.executable
        super().__init__(path, out, *words, python=python, GRPO_FAULT=fault, GRPO_VLLM_PYTHON=str(VLLM_PYTHON))

    @property
    def printed(self) -> str:
        log = self.out / "vllm.log"
        more = log.read_text(errors="replace")[-4000:] if log.is_file() else ""
        return super().printed + "\n--- vllm.log\n" + more


def servers() -> list[int]:
    """Processes that are vLLM servers, alive: a zombie has no command line."""
    processes = psutil.process_iter(["cmdline"])
    return [process.pid for process in processes if "grpo_core.rollout.vllm.server" in (process.info["cmdline"] or [])]


def move(policy: LoadedModel, size: float = 0.05, seed: int = 1) -> None:
    """Every weight that is trained, a little."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=random) * size)
