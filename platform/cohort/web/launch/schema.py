"""The run form's fields, read off RunConfig, and its inputs' texts for a config, both ways without loss. A field added
to the config appears here by itself, in the Advanced group of its part.

Knows nothing of requests or the database.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from cohort.web.fields import FieldSpec, leaves
from cohort.web.launch.variants import DEFAULT
from grpo_core.config.presets import Preset
from grpo_core.config.run import RunConfig

FROM_CATALOG = frozenset(
    {
        *("name", "preset", "model.path", "model.revision", "data.path", "data.format", "data.columns"),
        *("data.hub", "eval.hub", "reward", "eval.path", "eval.format", "eval.columns", "eval.suites"),
        "eval.reward",
    }
)
"""Parts of a config that the form's own choices decide: base model, datasets, reward source, suites."""

FROM_VARIANT = ("algorithm.advantage", "algorithm.scale", "algorithm.std_ddof")
"""What the value of the one choice called normalization is made of, in order."""

FIRST = (
    "sampling.group_size",
    "algorithm.kl.coef",
    "algorithm.clip_low",
    "algorithm.clip_high",
    "optim.steps",
    "eval.holdout",
)
"""Fields of the first screen; all others are under Advanced."""

CHOICES = {
    "base_model": "Base model",
    "dataset": "Dataset",
    "eval_dataset": "Held-out dataset",
    "verifier_version": "Reward source",
    "eval_verifier_version": "Held-out verifier",
    "variant": "Normalization",
    "preset": "Preset",
    "name": "Name",
    "priority": "Priority",
    "node_label": "Node label",
    "hypotheses": "Hypotheses",
    "find": "Find",
    "probe_override": "Reward",
}
"""Labels of the inputs that are no field of the config."""

SUBJECTS = {
    "sampling.group_size": "G",
    "algorithm.kl.coef": "β",
    "algorithm.clip_low": "ε low",
    "algorithm.clip_high": "ε high",
    "algorithm.inner_iterations": "μ",
}
"""What a sentence calls a field whose label is too long to begin it."""

_FROM_ROWS = (
    ("model.", "base_model"),
    ("data.path", "dataset"),
    ("data.format", "dataset"),
    ("data.columns", "dataset"),
    ("data.hub", "dataset"),
    ("eval.path", "eval_dataset"),
    ("eval.format", "eval_dataset"),
    ("eval.columns", "eval_dataset"),
    ("eval.hub", "eval_dataset"),
    ("eval.reward", "eval_verifier_version"),
    ("reward", "verifier_version"),
)


@dataclass(frozen=True)
class Group:
    """A folded part of Advanced."""

    id: str
    title: str
    prefixes: str
    """Of the paths of its fields, with spaces between them."""
    line: str
    """What the folded line shows: phrases with a path in braces."""

    @property
    def headline(self) -> list[tuple[str, str]]:
        """(path, phrase with {}) of each."""
        split = [re.split(r"[{}]", phrase) for phrase in self.line.split(" · ")]
        return [(path, f"{before}{{}}{after}") for before, path, after in split]


GROUPS = (
    Group(
        "sampling",
        "Sampling",
        "sampling. data.",
        "temperature {sampling.temperature} · {sampling.prompts_per_step} prompts a step · "
        "at most {sampling.max_completion_tokens} tokens",
    ),
    Group(
        "control",
        "Signal, dynamic sampling, overlong, correction",
        "algorithm.signal_gate algorithm.dynamic_sampling. algorithm.overlong. algorithm.correction.",
        "{algorithm.signal_gate} must vary · dynamic sampling {algorithm.dynamic_sampling.enabled} · "
        "overlong {algorithm.overlong.buffer_tokens} · "
        "correction {algorithm.correction.mode}",
    ),
    Group(
        "advantage",
        "Advantage",
        "algorithm.advantage_eps algorithm.pass_k algorithm.multi_objective_aggregation algorithm.supervision",
        "{algorithm.supervision} · k {algorithm.pass_k} · ε {algorithm.advantage_eps}",
    ),
    Group(
        "loss",
        "Loss, clipping and updates",
        "algorithm.",
        "{algorithm.loss} · μ {algorithm.inner_iterations} · mini-batches {algorithm.mini_batches}",
    ),
    Group(
        "averaging",
        "Loss aggregation",
        "algorithm.aggregation algorithm.local_batch algorithm.denominator",
        "{algorithm.aggregation} · {algorithm.aggregation_constant} · {algorithm.local_batch} · "
        "{algorithm.denominator} groups",
    ),
    Group(
        "kl",
        "KL and reference",
        "algorithm.kl. algorithm.reference.",
        "{algorithm.kl.estimator} · to {algorithm.kl.target} · in the {algorithm.kl.place} · {algorithm.kl.controller}",
    ),
    Group("critic", "PPO's critic", "algorithm.critic.", "lr {algorithm.critic.lr} · λ {algorithm.critic.gae_lambda}"),
    Group("model", "Model and LoRA", "model.", "{model.dtype} · LoRA rank {model.lora.rank}"),
    Group("optim", "Optimiser", "optim.", "lr {optim.lr} · {optim.schedule}"),
    Group(
        "engine",
        "Engine",
        "engine.",
        "device {engine.device} · sampler {engine.rollout} · trainer {engine.training} · "
        "vLLM {engine.vllm.place} · ZeRO {engine.deepspeed.zero_stage}",
    ),
    Group(
        "eval",
        "Evaluation and margins",
        "eval.",
        "temperature {eval.temperature} · {eval.samples_per_problem} a problem · "
        "every {eval.every} steps · margin {eval.margin}, locked at launch",
    ),
    Group(
        "checkpoints",
        "Checkpoints",
        "checkpoints.",
        "every {checkpoints.every} steps · newest {checkpoints.keep} kept · best {checkpoints.best}",
    ),
    Group("rest", "Traces, seed", "", "{traces.groups_per_step} groups kept · tokens of {traces.tokens} · seed {seed}"),
)


@cache
def fields() -> dict[str, FieldSpec]:
    """Every leaf of RunConfig that is a field of the form, by dotted path, in the config's order."""
    left_out = FROM_CATALOG.union(FROM_VARIANT)
    return {spec.path: spec for spec in leaves(RunConfig, whole=FROM_CATALOG) if spec.path not in left_out}


@cache
def _yaml_fields() -> tuple[FieldSpec, ...]:
    return tuple(spec for spec in fields().values() if spec.kind == "yaml")


@cache
def group_of(path: str) -> str | None:
    """Id of the Advanced group that holds the field, the one with the longest prefix of its path; None for a field of
    the first screen."""
    if path in FIRST:
        return None
    fitting = [
        (len(prefix), group.id) for group in GROUPS for prefix in group.prefixes.split(" ") if path.startswith(prefix)
    ]
    return max(fitting, key=lambda pair: pair[0])[1]


def input_of(path: str) -> str | None:
    """Name of the input that decides what is at this path of a config; None for a whole part of it."""
    if path in fields() or path in CHOICES:
        return path
    if path in FROM_VARIANT:
        return "variant"
    return next((name for prefix, name in _FROM_ROWS if path.startswith(prefix)), None)


def preset_source(preset: Preset) -> str:
    """The paper, or our own preset's name."""
    return preset.paper if preset.paper != "Cohort" else preset.name


# ---------------------------------------------------------------------- config and texts


def texts_of(config: Mapping[str, Any]) -> dict[str, str]:
    """What the inputs show for `config`, a whole or partial RunConfig as nested dict; what it lacks is its default."""
    texts = {path: spec.to_text(lookup(config, path, spec.default)) for path, spec in fields().items()}
    variant = [str(lookup(config, path, part)) for path, part in zip(FROM_VARIANT, DEFAULT.split("/"), strict=True)]
    return {**texts, "variant": "/".join(variant)}


def unreadable(texts: Mapping[str, str]) -> dict[str, str]:
    """By path, why a text that is to be YAML is none."""
    faults = {}
    for spec in _yaml_fields():
        try:
            spec.from_text(texts.get(spec.path, ""))
        except yaml.YAMLError as error:
            faults[spec.path] = f"{spec.label} is not YAML: {' '.join(str(error).split())}"
    return faults


def settings_of(texts: dict[str, str]) -> dict[str, Any]:
    """The nested settings in the inputs' texts. Fields with no text given, and those that are `unreadable`, are left at
    their default."""
    settings: dict[str, Any] = {}
    left_out = unreadable(texts)
    for path, spec in fields().items():
        if path in texts and path not in left_out:
            put(settings, path, spec.from_text(texts[path]))
    if variant := texts.get("variant"):
        for path, part in zip(FROM_VARIANT, variant.split("/"), strict=False):
            put(settings, path, int(part) if part in ("0", "1") else part)
    return settings


def lookup(config: Mapping[str, Any], path: str, default: Any = None) -> Any:
    node: Any = config
    for piece in path.split("."):
        if not isinstance(node, Mapping) or piece not in node:
            return default
        node = node[piece]
    return node


def put(settings: dict[str, Any], path: str, value: Any) -> None:
    *parents, leaf = path.split(".")
    for parent in parents:
        settings = settings.setdefault(parent, {})
    settings[leaf] = value
