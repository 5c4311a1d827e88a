"""Runs of the real command on a tiny model, each in a forked child of this process: torch is loaded once, and a child
may die by SIGKILL wherever a test wants it to.

The model is made with one thread, so nothing of torch's runs beside the process when it forks.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
import transformers.models.llama.modeling_llama  # noqa: F401  here, so that no child has to
import yaml
from safetensors.torch import load_file, save_file

from grpo_core.cli.main import main
from grpo_core.config.kinds import config_from_dict
from grpo_core.config.sft import SftConfig
from grpo_core.files.checkpoint import MANIFEST, STATE, file_entries, read_manifest, write_manifest
from grpo_core.files.spool import SpoolReader
from grpo_core.model.tiny import byte_tokenizer
from grpo_core.runtime import fault_injection as faults
from grpo_core.trainer.kinds import TRAINERS  # noqa: F401  here, so that no child has to
from tests.processes import below, clean_environment, wait_for
from tests.tables import FOLDER

from .tiny import SHAPE, config, tiny_folder

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
KILLED = -int(signal.SIGKILL)
OF_THE_MACHINE = ("samples_per_second", "tokens_per_second", "memory", "device_utilisation")
"""First words of the metrics that differ from one run to the next that does the same."""
STEPS = 4
STEP_POINTS = ("step", "sampled", "updating", "updated", "recorded")
"""Where a trainer can be killed in every step (grpo_core/runtime/fault_injection.py)."""
AHEAD_POINTS = ("drawing", "drawn", "waiting")
"""And with engine.one_step_off: the first two are passed in the drawing thread, for the step that comes next."""

_RUNS = yaml.safe_load((FOLDER / "trainer/runs.yaml").read_text(encoding="utf-8"))
PLAIN: dict[str, object] = _RUNS["plain"]
SETTINGS: dict[str, dict[str, object]] = _RUNS["settings"]
ENGINES: dict[str, dict[str, object]] = _RUNS["engines"]
KILLS: dict[str, list[str]] = _RUNS["kills"]
CUTS: list[str] = _RUNS["cuts"]


def make_home(folder: Path) -> Path:
    """A folder with a tiny model `base` that says hardly anything but digits, and problems whose answers are such."""
    weights = tiny_folder(folder / "base") / "model.safetensors"
    tensors = load_file(weights)
    likely = [*byte_tokenizer().convert_tokens_to_ids(list("0123456789")), byte_tokenizer().eos_token_id]
    directions = torch.randn((len(likely), SHAPE.hidden), generator=torch.Generator().manual_seed(1))
    tensors["lm_head.weight"].zero_()[likely] = directions * 0.8
    save_file(tensors, weights, metadata={"format": "pt"})
    for name, letters in (("train", "abcdefg"), ("heldout", "hij")):
        write_problems(folder / f"{name}.jsonl", [f"say {letter}" for letter in letters], digit)
    return folder


def merged(base: dict[str, object], other: dict[str, object]) -> dict[str, object]:
    """`other` over `one`, part by part."""
    parts = dict(base)
    for name, value in other.items():
        before = parts.get(name)
        parts[name] = merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return parts


@dataclass(frozen=True)
class Setting:
    """One config on one home."""

    home: Path
    name: str
    parts: dict[str, object]

    def write(self, **more: object) -> Path:
        path = self.home / f"{self.name}.yaml"
        path.write_text(config(**merged(self.parts, more)).to_yaml(), encoding="utf-8")
        return path

    def train(self, out: Path, *arguments: str, fault: str = "", **more: object) -> int:
        """Exit status of `grpo train`, or minus the signal that ended it."""
        return forked(["train", str(self.write(**more)), "--out", str(out), *arguments], fault=fault)

    def train_captured(self, out: Path, *arguments: str, log: Path | None = None, **more: object) -> tuple[int, str]:
        """The same, with what it printed (by way of `log`)."""
        log = log or out.with_name(f"{out.name}.printed")
        status = forked(["train", str(self.write(**more)), "--out", str(out), *arguments], log=log)
        return status, log.read_text(encoding="utf-8")

    def through(self, out: Path, points: Sequence[str], **more: object) -> list[str]:
        """Train to the end, killed at each of the points in turn and resumed; returns those that were met: all."""
        for point in points:
            assert self.train(out, *resuming(out), fault=point, **more) == KILLED, point
        assert self.train(out, *resuming(out), **more) == 0
        return list(points)


def setting(home: Path, name: str) -> Setting:
    return Setting(home, name, merged(PLAIN, (SETTINGS | ENGINES)[name]))


def names_of_steps(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "checkpoints").glob("step-*"))


def flip(path: Path, offset: int) -> None:
    """Change one bit of one byte."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def state_of(checkpoint: Path) -> dict[str, object]:
    """Its state.json."""
    return json.loads((checkpoint / STATE).read_text(encoding="utf-8"))


def write_state(checkpoint: Path, state: dict[str, object]) -> None:
    """Put another state.json into a whole checkpoint, so that it is whole again: as another version would write it."""
    (checkpoint / STATE).write_text(json.dumps(state), encoding="utf-8")
    files = {name: entry for name, entry in file_entries(checkpoint).items() if name != MANIFEST}
    write_manifest(checkpoint, read_manifest(checkpoint).model_copy(update={"files": files}))


def resuming(out: Path) -> list[str]:
    """--resume, if there is a checkpoint."""
    return ["--resume"] if any((out / "checkpoints").glob("step-*")) else []


def forked(arguments: list[str], *, fault: str = "", log: Path | None = None) -> int:
    """Run the command in a forked child; what it prints goes to `log`. Returns its exit status, or minus the signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        status = 70
        try:
            out = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(out, 1)
            os.dup2(out, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            os.fsync = lambda descriptor: None  # a killed process loses nothing that it wrote; only a power cut does
            # The parent's thread pool is gone. Whoever asks first makes another, and two at once would find none.
            torch.set_num_threads(torch.get_num_threads())
            faults.arm(fault)
            status = main(arguments)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(ended)


class Launched:
    """`grpo train` in a process of its own, and what it prints in a file beside its config."""

    def __init__(
        self, config: Path, out: Path, *words: str, python: str | Path = sys.executable, **environment: str
    ) -> None:
        self.out, self.log = out, config.with_name(f"{out.name}.printed")
        with self.log.open("w") as printed:
            self.process = subprocess.Popen(
                [str(python), "-P", "-m", "grpo_core.cli.main", "train", str(config), "--out", str(out), *words],
                env={**clean_environment("GRPO_"), "OMP_NUM_THREADS": "1", **environment},
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
            )

    @property
    def printed(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def until(self, words: str) -> list[psutil.Process]:
        """Every process below it once these are printed."""
        wait_for(lambda: words in self.printed, lambda: self.printed, self.process)
        return below(self.process.pid)

    def ended(self) -> int:
        return self.process.wait()


LETTERS = "abcdefghijklmnopqrstuvwxyz"
ENDS = list(range(30))
"""Ids that end a completion of the model `ends`. One byte in nine does, so lengths are uneven and some are cut off."""


def make_letters(folder: Path) -> Path:
    """A folder with tiny models `base` and `ends` and problems whose right answer is always the one letter k."""
    tiny_folder(folder / "base")
    settings = tiny_folder(folder / "ends") / "generation_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "eos_token_id": ENDS}))
    write_problems(folder / "train.jsonl", [f"say {letter}" for letter in LETTERS[:16]])
    write_problems(folder / "heldout.jsonl", [f"say {letter}" for letter in LETTERS[16:]])
    return folder


def digit(prompt: str) -> str:
    """By its last letter."""
    return str(ord(prompt[-1]) % 10)


def write_problems(path: Path, prompts: Sequence[str], answer: Callable[[str], str] = lambda prompt: "k") -> None:
    lines = [json.dumps({"prompt": prompt, "answer": answer(prompt)}) + "\n" for prompt in prompts]
    path.write_text("".join(lines), encoding="utf-8")


def train_here(home: Path, out: Path, *words: str, **parts: object) -> int:
    """Run the command in this process; returns its exit status."""
    path = home / f"{out.name}.yaml"
    path.write_text(config(**parts).to_yaml(), encoding="utf-8")
    return main(["train", str(path), "--out", str(out), *words])


# ---------------------------------------------------------------------- what came out


def metrics_of(out: Path) -> list[dict[str, float]]:
    return [row["metrics"] for row in rows(out / "metrics.jsonl")]


def groups_of(out: Path) -> list[dict[str, Any]]:
    return [group for path in sorted((out / "samples").glob("*.jsonl")) for group in rows(path)]


def samples_of(out: Path) -> list[dict[str, Any]]:
    return [sample for group in groups_of(out) for sample in group["samples"]]


def weights_of(out: Path) -> dict[str, torch.Tensor]:
    """Of the trained model."""
    return load_file(out / "checkpoints" / "final" / "model.safetensors")


def far(tensors: Mapping[str, torch.Tensor], others: Mapping[str, torch.Tensor]) -> float:
    """Largest difference of a weight; not a number where one is none."""
    assert tensors.keys() == others.keys()
    return torch.stack([(tensors[name].double() - others[name].double()).abs().max() for name in tensors]).max().item()


def outcome_of(out: Path) -> dict[str, Any]:
    return json.loads((out / "outcome.json").read_text())


def spooled(out: Path) -> list[dict[str, Any]]:
    """Envelopes of all records in the spool."""
    return [json.loads(line.body) for line in SpoolReader(out / "spool").read_new(limit=10**6, max_bytes=10**9)]


def warnings_of(out: Path) -> list[str]:
    return [row["message"] for row in rows(out / "events.jsonl") if row.get("type") == "warning"]


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line)["record"] for line in path.read_text(encoding="utf-8").splitlines()]


def tree(folder: Path) -> dict[str, str]:
    """SHA-256 of every file, by path, and every folder; without log.txt, which tells of each attempt."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in folder.rglob("*")
        if path.name != "log.txt"
    }


def untimed(row: dict[str, object]) -> dict[str, object]:
    """A record without what the clock says, and without what depends on salts, which no seed draws."""
    if row["kind"] == "step":
        metrics = {name: value for name, value in row["metrics"].items() if name.split("/")[0] not in OF_THE_MACHINE}
        return {**row, "metrics": metrics, "seconds": None}
    if row["kind"] == "group":
        drop = ("seconds", "salt", "tokens_sha256")
        return json.loads(json.dumps(row), object_hook=lambda part: {k: v for k, v in part.items() if k not in drop})
    return {**row, "seconds": None}


@dataclass(frozen=True)
class Result:
    """All that a run says, without times; equal for two runs that did the same."""

    weights: str
    metrics: list[dict[str, object]]
    samples: dict[str, list[dict[str, object]]]
    evaluations: dict[str, list[dict[str, object]]]
    totals: dict[str, float]


def result(out: Path) -> Result:
    outcome = outcome_of(out)
    assert outcome["status"] == "finished", outcome
    return Result(
        hashlib.sha256((out / "checkpoints/final/model.safetensors").read_bytes()).hexdigest(),
        [untimed(row) for row in rows(out / "metrics.jsonl")],
        {path.name: [untimed(row) for row in rows(path)] for path in sorted((out / "samples").glob("*.jsonl"))},
        {path.name: [untimed(row) for row in rows(path)] for path in sorted((out / "evals").glob("*.jsonl"))},
        {name: value for name, value in outcome["totals"].items() if name != "seconds"},
    )


def sft(**parts: Any) -> SftConfig:
    """A small config of fine-tuning, with these parts in place of its own."""
    base: dict[str, Any] = {
        "model": {"path": "base"},
        "data": {"path": "train.jsonl"},
        "optim": {"steps": 4, "batch_size": 3, "lr": 1e-3},
        "engine": {"threads": 1},
        "checkpoints": {"every": 1},
        "eval": {"cost": 0, "before": False, "after": False},
    }
    for name, part in parts.items():
        base[name] = {**base.get(name, {}), **part} if isinstance(part, dict) else part
    config = config_from_dict({"kind": "sft", **base})
    assert isinstance(config, SftConfig)
    return config
