"""How torchrun is called for a run, the environment of it and its processes, and the device of a
process."""

import os
import sys
from collections.abc import Sequence

import torch

from grpo_core.config.run import EngineConfig
from grpo_core.errors import ModelError


def pick_device(device: str) -> torch.device:
    if device == "cuda" and not torch.cuda.is_available():
        raise ModelError("engine.device is cuda, but PyTorch sees no GPU here; use auto or cpu")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


PARENT = "GRPO_PARENT"
"""Pid of the process without which this one must not continue."""


def torchrun(engine: EngineConfig, meeting: Sequence[str], words: Sequence[str]) -> list[str]:
    """torchrun with our exit status. Over machines it meets by fixed numbers, not by its elastic rendezvous, because
    that one sorts the machines by name, and rank 0 must be on the first: it writes the run directory there."""
    safe_path = ["-P"] if sys.flags.safe_path else []
    shape = ["--nnodes", str(engine.nodes), "--nproc-per-node", str(engine.devices), "--max-restarts", "0"]
    return [
        *(sys.executable, *safe_path, "-m", "grpo_core.distributed.torchrun"),
        *(*shape, *meeting, "-m", "grpo_core.cli.main", *words),
    ]


def environment(engine: EngineConfig) -> dict[str, str]:
    """Variables for torchrun and its processes. Threads of each, where nobody chose: the machine's cores shared out,
    where torchrun would take one. torchrun's own log stays quiet: what it does on a stop is no error to a person."""
    threads = engine.threads or max(1, (os.cpu_count() or 1) // engine.devices)
    return {"LOGLEVEL": "CRITICAL", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
