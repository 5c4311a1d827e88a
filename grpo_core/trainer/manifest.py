"""What a run is based on: code, versions, machine, seeds, and the hashes of model and data. Measured, never assumed."""

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from grpo_core import __version__
from grpo_core.config.evaluation import EvalConfig
from grpo_core.config.kinds import AnyConfig
from grpo_core.config.run import DataConfig
from grpo_core.config.sft import ConversationsConfig
from grpo_core.data.fingerprint import file_sha256, problems_digest
from grpo_core.data.loaders import detect_file
from grpo_core.data.prompts import Encoded, Prompted
from grpo_core.evaluate.suites.load import Suite
from grpo_core.files.weights import PROVENANCE
from grpo_core.model.load import LoadedModel
from grpo_core.model.source import dataset_digest, inputs_of_model, model_hashes
from grpo_core.records.types import Manifest
from grpo_core.runtime.energy import Meter, open_meter, own_gpus
from grpo_core.text import UNSTORABLE

_EXAMPLE_CHARS, _EXAMPLE_TOKENS = 8_000, 2_000
"""Most of the prompt that a manifest keeps as an example."""
HELDOUT_CONVERSATIONS = "heldout_conversations"
"""Under which a manifest's data has those whose loss is measured."""
_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pydantic", "math-verify", "peft")


def build_manifest(
    config: AnyConfig,
    policy: LoadedModel,
    *,
    train: dict[str, Any],
    heldout: dict[str, Any] | None,
    suites: dict[str, dict[str, Any]],
    overlap: Mapping[str, dict[str, Any]] | None,
    ranks: int,
    reward: dict[str, Any],
    sandbox: dict[str, Any] | None,
    more_data: Mapping[str, Any] = MappingProxyType({}),
) -> Manifest:
    """The record of all that decides the run's numbers. `train` and `heldout` come from `data_facts`, `suites` from
    `suite_facts`, by name; `overlap`: what of each evaluation the training problems already hold; `ranks`: how many
    processes share the work; `reward` and `sandbox`: what the run's `Runner` reports; `more_data`: of data that only
    some kinds of run have."""
    power_meter = meter(policy.device, ranks)
    facts = {
        "code": code_state(),
        "packages": package_versions(),
        "platform": machine(policy.device)
        | {"ranks": ranks, "energy_meter": power_meter.words if power_meter else None},
        "model": model_facts(config, policy),
        "data": {"train": train, "eval": heldout, "suites": suites, "overlap": dict(overlap or {}), **more_data},
        "seeds": {"run": config.seed},
        "config_digest": config.digest(),
        "reward": reward,
        "sandbox": sandbox,
    }
    return Manifest.model_validate(facts)


def inputs_of(manifest: Manifest) -> dict[str, str | None]:
    """SHA-256 of each input of a run that must not change when it continues."""
    heldout = manifest.data["eval"]
    suites = manifest.data["suites"].items()
    train = manifest.data["train"]
    more: Any = manifest.data.get(HELDOUT_CONVERSATIONS)
    replay = train.get("replay")
    return {
        **inputs_of_model(manifest.model),
        f"the training {train.get('content', 'problems')}": train["problems_digest"],
        "the held-out problems": heldout["problems_digest"] if heldout is not None else None,
        **({"the held-out conversations": more["problems_digest"]} if more is not None else {}),
        **({"the replayed preferences": replay["problems_digest"]} if isinstance(replay, dict) else {}),
        **{f"the problems of the suite {name}": facts["items_digest"] for name, facts in suites},
        **{
            f"the {what} of the reward component {name}": facts[f"{part}_sha256"]
            for name, facts in manifest.reward.items()
            for part, what in (("weights", "weights"), ("settings", "settings"), ("tokenizer", "tokenizer's files"))
            if f"{part}_sha256" in facts
        },
    }


def code_state(root: Path = _ROOT) -> dict[str, Any]:
    """Package version, and of a git checkout the commit and the SHA-256 of what differs from it (null when nothing
    does). Untracked Python files of the package count as a difference."""
    commit = _git(root, "rev-parse", "HEAD") if (root / ".git").exists() else None
    if commit is None:
        return {"version": __version__, "git_commit": None, "dirty_sha256": None}
    difference = hashlib.sha256()
    changed = _git(root, "diff", "HEAD", "--binary") or b""
    difference.update(changed)
    untracked = (_git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", "grpo_core") or b"").split(b"\0")
    added = [root / os.fsdecode(name) for name in sorted(untracked) if name.endswith(b".py")]
    for path in added:
        difference.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return {
        "version": __version__,
        "git_commit": commit.decode().strip(),
        "dirty_sha256": difference.hexdigest() if changed or added else None,
    }


def package_versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def machine(device: torch.device) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }


def meter(device: torch.device, ranks: int) -> Meter | None:
    """Of the devices of all processes; None where it cannot be read from here."""
    uuids = []
    if device.type == "cuda":
        first = device.index or 0 if ranks == 1 else 0
        every = range(first, torch.cuda.device_count())
        uuids = [f"GPU-{torch.cuda.get_device_properties(index).uuid}" for index in every]
    gpus = own_gpus(uuids, world=ranks)
    return None if gpus is None else open_meter(gpus)


def model_facts(config: AnyConfig, policy: LoadedModel) -> dict[str, Any]:
    folder = policy.source.folder
    return {
        "source": policy.source.given,
        "revision": policy.source.revision,
        "architecture": type(policy.model).__name__,
        "parameters": policy.parameters(),
        "shape": policy.shape().model_dump(),
        "context": policy.context,
        "dtype": config.model.dtype,
        "quantization": config.model.quantization,
        **model_hashes(policy.source),
        "provenance": read_provenance(folder),
    }


def read_provenance(folder: Path) -> dict[str, Any] | None:
    """How the base model was made, if it was made by `grpo cold-start` or `grpo import-gguf`."""
    path = folder / PROVENANCE
    if not path.is_file():
        return None
    provenance: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return provenance


@dataclass(frozen=True, slots=True)
class DataSource:
    """Files that problems or conversations are from."""

    path: str
    """As the config has it."""
    files: tuple[Path, ...]
    part: DataConfig | EvalConfig | ConversationsConfig
    """How they are read."""

    def name(self, file: Path) -> str:
        """As the config has it, or in the Hub repository."""
        hub = self.part.hub
        return self.path if hub is None else file.as_posix().partition(f"/{hub.revision}/")[2]


def data_facts(source: DataSource, encoded: Encoded, unreadable: int) -> dict[str, Any]:
    """Hashes, layout and prompt lengths of one set's problems; `unreadable` were dropped for their reference.
    Of several files, `sha256` is that of their names and hashes."""
    part = source.part
    assert not isinstance(part, ConversationsConfig), "their facts are conversation_facts"
    detected = detect_file(source.files[0], part.format, columns=part.columns)
    hashes = {source.name(path): file_sha256(path) for path in source.files}
    return {
        "path": source.path,
        "hub": part.hub.model_dump() if part.hub is not None else None,
        "files": hashes,
        "sha256": dataset_digest(hashes),
        "container": detected.container,
        "format": detected.reading.format,
        "columns": dict(detected.reading.columns),
        "problems": len(encoded.prompts),
        "problems_digest": problems_digest(prompted.problem for prompted in encoded.prompts),
        "dropped": len(encoded.dropped),
        "unreadable": unreadable,
        "prompt_tokens": encoded.token_stats(),
        "prompt_lengths": _lengths(encoded),
        "prompt_example": _example(encoded.prompts[0]),
        "chat": dict(encoded.chat),
    }


def _lengths(encoded: Encoded) -> dict[str, Any]:
    counts, edges = np.histogram([len(prompted.tokens) for prompted in encoded.prompts], bins=20)
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def _example(prompted: Prompted) -> dict[str, Any]:
    text = UNSTORABLE.sub("\ufffd", prompted.text)
    more = len(text) - _EXAMPLE_CHARS
    return {
        "problem_id": prompted.problem.id,
        "text": text if more <= 0 else f"{text[:_EXAMPLE_CHARS]}… ({more:,} more characters)",
        "tokens": list(prompted.tokens[:_EXAMPLE_TOKENS]),
        "answer_starts": prompted.answer_starts,
        "left_out": max(0, len(prompted.tokens) - _EXAMPLE_TOKENS),
    }


def suite_facts(suite: Suite, encoded: Encoded) -> dict[str, Any]:
    """Hashes and prompt lengths of one suite."""
    config = suite.config
    return {
        "title": config.title,
        "version": config.version,
        "category": config.category,
        "path": config.path,
        "sha256": suite.sha256,
        "items": len(suite.items),
        "clusters": len({item.cluster or item.id for item in suite.items}),
        "items_digest": suite.digest,
        "scorer": config.scorer.kind,
        "scorer_digest": suite.scorer.digest,
        "prompt_tokens": encoded.token_stats(),
    }


def _git(root: Path, *arguments: str) -> bytes | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
