"""Papers' settings by name, and how a config differs from the one it started with.

A preset holds only what its paper states and this trainer can be told; what the paper does besides stands in `notes`.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from grpo_core.config import RunConfig
from grpo_core.errors import ConfigError, FieldProblem


@dataclass(frozen=True, slots=True)
class Preset:
    name: str
    """As in `RunConfig.preset`."""
    title: str
    paper: str
    """Short name of the source; "Cohort" for our own."""
    citation: str
    settings: dict[str, dict[str, Any]]
    """Part of a RunConfig: {part: {field: value}}."""
    notes: str
    """What the paper does that these settings do not express."""

    def leaves(self) -> list[tuple[str, Any]]:
        """(dotted path, value) of every field it sets."""
        return _leaves(self.settings)


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that a run sets otherwise than its preset."""

    path: str
    """Dotted, as in the config."""
    paper: Any
    yours: Any


_ALL = (
    Preset(
        name="deepseekmath",
        title="GRPO as first published",
        paper="DeepSeekMath",
        citation="Shao et al. 2024, DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
        settings={
            "sampling": {"group_size": 64, "max_completion_tokens": 1024},
            "algorithm": {
                "scale": "group_std",
                "aggregation": "sequence_mean",
                "kl": {"coef": 0.04, "estimator": "k3"},
                "inner_iterations": 1,
            },
            "optim": {"lr": 1e-6},
        },
        notes="The paper's batch is 1,024 completions. It states neither ε nor which standard deviation it divides by.",
    ),
    Preset(
        name="r1_zero",
        title="Pure reinforcement learning from rules",
        paper="DeepSeek-R1",
        citation=(
            "DeepSeek-AI 2025, DeepSeek-R1: Incentivizing Reasoning Capability in LLMs via Reinforcement Learning"
        ),
        settings={
            "sampling": {"group_size": 16, "prompts_per_step": 32, "max_completion_tokens": 32768},
            "algorithm": {
                "scale": "group_std",
                "aggregation": "sequence_mean",
                "clip_low": 1.0,
                "clip_high": 10.0,
                "kl": {"coef": 0.001, "estimator": "k3"},
                "inner_iterations": 1,
            },
            "optim": {"lr": 3e-6},
        },
        notes=(
            "The paper clips at ε 10 on both sides; below, a ratio cannot fall under 0, which is clip_low 1. It "
            "samples 8,192 outputs at once and cuts them in 16 mini-batches, and renews the reference every 400 steps."
        ),
    ),
    Preset(
        name="dapo",
        title="Clip higher, mean over tokens, no KL",
        paper="DAPO",
        citation="Yu et al. 2025, DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
        settings={
            "sampling": {"group_size": 16, "prompts_per_step": 512, "max_completion_tokens": 20480},
            "algorithm": {
                "scale": "group_std",
                "aggregation": "token_mean",
                "clip_low": 0.2,
                "clip_high": 0.28,
                "kl": {"coef": 0.0},
            },
            "optim": {"lr": 1e-6, "warmup_steps": 20, "schedule": "constant"},
        },
        notes=(
            "The paper also draws new problems for groups without signal (dynamic sampling), takes off reward for "
            "completions over 16,384 tokens, and pays +1 or −1."
        ),
    ),
    Preset(
        name="dr_grpo",
        title="No division by standard deviation or length",
        paper="Dr. GRPO",
        citation="Liu et al. 2025, Understanding R1-Zero-Like Training: A Critical Perspective",
        settings={
            "sampling": {"group_size": 8, "temperature": 1.0, "max_completion_tokens": 3000},
            "algorithm": {
                "scale": "none",
                "aggregation": "constant",
                "aggregation_constant": 3000,
                "kl": {"coef": 0.0},
            },
            "optim": {"lr": 1e-6, "schedule": "constant"},
        },
        notes="The constant is the longest completion allowed; change both together.",
    ),
    Preset(
        name="demo",
        title="Small and quick: learns two-digit addition on a laptop",
        paper="Cohort",
        citation="Cohort's own demo; the clip range, the mean over tokens and β 0 are DAPO's",
        settings={
            "sampling": {
                "group_size": 8,
                "prompts_per_step": 32,
                "temperature": 1.0,
                "max_completion_tokens": 64,
            },
            "algorithm": {
                "scale": "group_std",
                "aggregation": "token_mean",
                "clip_low": 0.2,
                "clip_high": 0.28,
                "kl": {"coef": 0.0},
            },
            "optim": {"steps": 120, "lr": 2e-4, "warmup_steps": 10},
            "eval": {"temperature": 1.0},
        },
        notes="Held-out problems are answered at temperature 1, as the policy samples in training. The learning rate "
        "suits a model of less than a million parameters; a real model needs about 1e-6.",
    ),
)

PRESETS: dict[str, Preset] = {preset.name: preset for preset in _ALL}


def apply(preset_name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The preset's settings under the given ones, which win field by field; `preset` is set to the name.

    A constant of the preset falls away when the given settings choose another aggregation, where it means nothing.
    Raises ConfigError for an unknown name. The result is not checked: give it to `RunConfig.from_dict`.
    """
    merged = _merge(deepcopy(_preset(preset_name).settings), settings)
    algorithm = merged.get("algorithm")
    if isinstance(algorithm, dict) and algorithm.get("aggregation") != "constant":
        given = settings.get("algorithm")
        if not (isinstance(given, Mapping) and "aggregation_constant" in given):
            algorithm.pop("aggregation_constant", None)
    return {**merged, "preset": preset_name}


def diff(config: RunConfig) -> list[Difference]:
    """Where the config departs from its preset, only over the fields that the preset sets; empty without a preset."""
    if config.preset is None:
        return []
    yours = config.to_dict()
    return [
        Difference(path, paper, value)
        for path, paper in _preset(config.preset).leaves()
        if (value := _at(yours, path)) != paper
    ]


def _preset(name: str) -> Preset:
    if name not in PRESETS:
        problem = FieldProblem("preset", f"{name!r} is not a preset; there are {', '.join(PRESETS)}")
        raise ConfigError(str(problem), (problem,))
    return PRESETS[name]


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in above.items():
        if isinstance(value, Mapping) and isinstance(below.get(name), dict):
            _merge(below[name], value)
        else:
            below[name] = deepcopy(value)
    return below


def _leaves(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found = []
    for name, value in settings.items():
        path = f"{prefix}{name}"
        found += _leaves(value, f"{path}.") if isinstance(value, Mapping) else [(path, value)]
    return found


def _at(settings: Any, path: str) -> Any:
    for name in path.split("."):
        settings = settings[name]
    return settings
