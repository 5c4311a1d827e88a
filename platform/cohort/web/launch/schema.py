"""The run form's fields, read off the config of the run's kind, and its inputs' texts for a config, both ways without
loss. A field added to a config appears here by itself, in the Advanced group of its part.

Knows nothing of requests or the database.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import yaml
from pydantic_core import to_jsonable_python

from cohort.web.fields import FieldSpec, leaves
from cohort.web.launch.layout import FIRST, FROM_CATALOG, FROM_VARIANT, GROUPS, WITHOUT_USE
from cohort.web.launch.variants import DEFAULT
from grpo_core.config.kinds import CONFIGS
from grpo_core.config.presets import Preset
from grpo_core.config.stage import Kind

CHOICES = {
    "base_model": "Base model",
    "dataset": "Dataset",
    "more": "Further datasets",
    "heldout": "Held-out rows",
    "replay": "Earlier preferences",
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
    ("data.more", "more"),
    ("more.", "more"),
    ("data.heldout_path", "heldout"),
    ("data.replay_path", "replay"),
    ("eval.path", "eval_dataset"),
    ("eval.format", "eval_dataset"),
    ("eval.columns", "eval_dataset"),
    ("eval.hub", "eval_dataset"),
    ("eval.reward", "eval_verifier_version"),
    ("reward", "verifier_version"),
)


@cache
def fields(kind: Kind = "grpo") -> dict[str, FieldSpec]:
    """Every leaf of the kind's config that is a field of the form, by dotted path, in the config's order."""
    left_out, defaults = FROM_CATALOG[kind].union(FROM_VARIANT, WITHOUT_USE[kind]), _defaults(kind)
    specs = (spec for spec in leaves(CONFIGS[kind], whole=left_out) if spec.path not in left_out)
    return {spec.path: replace(spec, default=lookup(defaults, spec.path, spec.default)) for spec in specs}


def _defaults(kind: Kind) -> dict[str, Any]:
    """Of the parts that need no value: a kind's config may have other defaults in a part than the part itself."""
    parts = CONFIGS[kind].model_fields.items()
    given = {name: part.get_default(call_default_factory=True) for name, part in parts if not part.is_required()}
    return {name: to_jsonable_python(value) for name, value in given.items()}


@cache
def every_field() -> dict[str, FieldSpec]:
    """Of all kinds, by path: what names a setting where runs of several kinds meet."""
    return {path: spec for kind in reversed(CONFIGS) for path, spec in fields(kind).items()} | fields("grpo")


@cache
def _yaml_fields(kind: Kind) -> tuple[FieldSpec, ...]:
    return tuple(spec for spec in fields(kind).values() if spec.kind == "yaml")


@cache
def group_of(path: str, kind: Kind = "grpo") -> str | None:
    """Id of the Advanced group that holds the field, the one with the longest prefix of its path; None for a field of
    the first screen."""
    if path in FIRST[kind]:
        return None
    fitting = [
        (len(prefix), group.id)
        for group in GROUPS[kind]
        for prefix in group.prefixes.split(" ")
        if path.startswith(prefix)
    ]
    return max(fitting, key=lambda pair: pair[0])[1]


def input_of(path: str, kind: Kind = "grpo") -> str | None:
    """Name of the input that decides what is at this path of a config; None for a whole part of it."""
    if path in fields(kind) or path in CHOICES:
        return path
    if path in FROM_VARIANT and kind == "grpo":
        return "variant"
    return next((name for prefix, name in _FROM_ROWS if path.startswith(prefix)), None)


def sentence(subject: str, message: str) -> str:
    """ "G must be 2 or more; given 1."; a caret under a template's line stays the last sign."""
    separator = " " if message.startswith(("must ", "is ", "holds ", "does ")) else ": "
    text = f"{subject}{separator}{message}"
    return text if text.endswith((".", ")", "^")) else text + "."


def preset_source(preset: Preset) -> str:
    """The paper, or our own preset's name."""
    return preset.paper if preset.paper != "Cohort" else preset.name


# ---------------------------------------------------------------------- config and texts


def texts_of(config: Mapping[str, Any], kind: Kind = "grpo") -> dict[str, str]:
    """What the inputs show for `config`, a whole or partial config of the kind as nested dict; what it lacks is its
    default."""
    texts = {path: spec.to_text(lookup(config, path, spec.default)) for path, spec in fields(kind).items()}
    if kind != "grpo":
        return texts
    variant = [str(lookup(config, path, part)) for path, part in zip(FROM_VARIANT, DEFAULT.split("/"), strict=True)]
    return {**texts, "variant": "/".join(variant)}


def unreadable(texts: Mapping[str, str], kind: Kind = "grpo") -> dict[str, str]:
    """By path, why a text that is to be YAML is none."""
    faults = {}
    for spec in _yaml_fields(kind):
        try:
            spec.from_text(texts.get(spec.path, ""))
        except yaml.YAMLError as error:
            faults[spec.path] = f"{spec.label} is not YAML: {' '.join(str(error).split())}"
    return faults


def settings_of(texts: dict[str, str], kind: Kind = "grpo") -> dict[str, Any]:
    """The nested settings in the inputs' texts. Fields with no text given, and those that are `unreadable`, are left at
    their default."""
    settings: dict[str, Any] = {}
    left_out = unreadable(texts, kind)
    for path, spec in fields(kind).items():
        if path in texts and path not in left_out:
            put(settings, path, spec.from_text(texts[path]))
    if kind == "grpo" and (variant := texts.get("variant")):
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
