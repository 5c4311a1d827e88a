"""LoRA on a base model in 4 bits (QLoRA) against the same in bfloat16 on a GPU: memory, time, and what its checkpoints
are good for. Prints one table, then a line per target. Where PyTorch sees no GPU, or bitsandbytes is missing, it says
so and ends well.

    .venv/bin/python benchmarks/quantized.py [--steps 3]

The work: a random Llama of 0.27 B (hidden 2,048, 4 layers, feed-forward 8,192, byte vocabulary), adapters of rank 16 on
every linear layer, 4 prompts with 8 completions of at most 64 tokens. Targets: the base takes at most 0.3 of bfloat16's
memory, adapters included; a run resumes for one more step; a run that continues a checkpoint's adapters begins with
them to the bit; `grpo export` gives a folder of whole weights.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from sides.beside import result

from grpo_core.config.run import ModelConfig
from grpo_core.model.load import find_model
from grpo_core.model.lora import load_policy
from grpo_core.model.tiny import TinyShape, save_tiny

SHAPE = TinyShape(hidden=2048, layers=4, heads=16, feed_forward=8192, context=1024)
LORA = {"rank": 16, "alpha": 32}
DEVICE = "cuda"
LENGTH = {"unit": "characters", "least": 24, "most": 32, "limit": 64}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=3, help="measured, after one to warm up")
    steps = options.parse_args().steps + 1
    if not torch.cuda.is_available() or find_spec("bitsandbytes") is None:
        missing = "bitsandbytes is missing" if torch.cuda.is_available() else "PyTorch sees no GPU"
        print(f"{missing} here: nothing measured")
        return 0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        save_tiny(folder / "base", seed=0, shape=SHAPE)
        problems = ({"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(64))
        (folder / "train.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
        bytes_of = {kind: base_bytes(folder, kind) for kind in ("none", "nf4")}
        print(f"{'base':10} {'weights GiB':>12} {'peak GiB':>9} {'s/step':>7}")
        for kind in ("none", "nf4"):
            steps_of = train(folder, kind, {"path": "base", "lora": LORA, "quantization": kind}, steps)[1:]
            peak = max(step["metrics"]["memory/peak_bytes"] for step in steps_of) / 2**30
            seconds = statistics.median(step["seconds"]["total"] for step in steps_of)
            name = "bfloat16" if kind == "none" else "NF4"
            print(f"{name:10} {bytes_of[kind] / 2**30:12.2f} {peak:9.2f} {seconds:7.2f}")
        checkpoint = folder / "nf4/checkpoints" / f"step-{steps:06d}"
        adapters = {"path": str(checkpoint), "lora": LORA, "quantization": "nf4", "adapter": "continue"}
        train(folder, "continued", adapters, 1)
        resumed = train(folder, "nf4", {"path": "base", "lora": LORA, "quantization": "nf4"}, steps + 1, resume=True)
        grpo("export", str(checkpoint), "--out", "exported", folder=folder)
        kept, continued = (adapter_of(path) for path in (checkpoint, folder / "continued/checkpoints/step-000000"))
        same = kept.keys() == continued.keys() and all(torch.equal(kept[name], continued[name]) for name in kept)
        whole = sum(tensor.numel() for tensor in load_file(folder / "exported/model.safetensors").values())
        print(result("nf4_base_weights_of_bfloat16", bytes_of["nf4"] / bytes_of["none"], 0.3, at_least=False))
        print(result("nf4_steps_after_resume", resumed[-1]["step"], steps + 1, at_least=True))
        print(result("nf4_adapters_continue_to_the_bit", float(same), 1.0, at_least=True))
        print(result("nf4_exported_weights_billions", whole / 1e9, 0.269, at_least=True))
    return 0


def base_bytes(folder: Path, kind: str) -> int:
    """Device memory that the base's weights and fresh adapters take."""
    given = ModelConfig.model_validate({"path": "base", "dtype": "bfloat16", "lora": LORA, "quantization": kind})
    before = torch.cuda.memory_allocated()
    policy = load_policy(find_model(given, base=folder), given, device=torch.device(DEVICE), seed=0)
    taken = torch.cuda.memory_allocated() - before
    del policy
    torch.cuda.empty_cache()
    return taken


def train(folder: Path, name: str, model: dict[str, Any], steps: int, *, resume: bool = False) -> list[dict[str, Any]]:
    """Its step records, in order."""
    config = {
        "model": {"dtype": "bfloat16", **model},
        "data": {"path": "train.jsonl"},
        "reward": {"components": [{"name": "length", "kind": "length", "params": LENGTH}]},
        "sampling": {"group_size": 8, "prompts_per_step": 4, "max_completion_tokens": 64},
        "optim": {"steps": steps, "lr": 1e-4},
        "engine": {"device": DEVICE},
        "checkpoints": {"every": 1},
        "eval": {"before": False, "after": False, "cost": 0},
    }
    (folder / f"{name}.json").write_text(json.dumps(config))
    grpo("train", f"{name}.json", "--out", name, *(["--resume"] if resume else []), folder=folder)
    lines = map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
    return [line["record"] for line in lines if line["record"]["kind"] == "step"]


def grpo(*arguments: str, folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "grpo_core.cli.main", *arguments], cwd=folder, check=True)


def adapter_of(checkpoint: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint / "policy.safetensors")


if __name__ == "__main__":
    sys.exit(main())
