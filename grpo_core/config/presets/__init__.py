"""Papers' settings by name, and how one fills in what a person's settings leave open.

A preset holds only what its paper states and this trainer can be set to; what else the paper does is in `notes`.
Loads no torch.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from difflib import get_close_matches
from typing import Any

from grpo_core.config.presets.baselines import BASELINE_FAMILY
from grpo_core.config.presets.grpo import GRPO_FAMILY
from grpo_core.config.presets.preset import FAMILIES as FAMILIES
from grpo_core.config.presets.preset import Preset as Preset
from grpo_core.config.presets.ratios import RATIO_FAMILY
from grpo_core.config.relevance import CHOICES, idle
from grpo_core.errors import ConfigError, FieldProblem

_DEMO_ALGORITHM: dict[str, Any] = {
    "scale": "group_std",
    "aggregation": "token_mean",
    "clip_low": 0.2,
    "clip_high": 0.28,
    "kl": {"coef": 0.0},
}

_DEMO = Preset(
    name="demo",
    family="own",
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
        "algorithm": _DEMO_ALGORITHM,
        "optim": {"steps": 120, "lr": 2e-4, "warmup_steps": 10},
        "eval": {"temperature": 1.0},
    },
    notes="Held-out problems are answered at temperature 1, as the policy samples in training. The learning rate "
    "suits a model of less than a million parameters; a real model needs about 1e-6.",
)

_DEMO_CHAT = Preset(
    name="demo_chat",
    family="own",
    title="An instruct model of a hundred million learns sums on a laptop",
    paper="Cohort",
    citation="Cohort's own demo; the clip range, the mean over tokens and β 0 are DAPO's",
    settings={
        "model": {"lora": {"rank": 16, "alpha": 32.0}},
        "sampling": {
            "group_size": 8,
            "prompts_per_step": 16,
            "temperature": 1.0,
            "max_completion_tokens": 24,
        },
        "algorithm": _DEMO_ALGORITHM,
        "optim": {"steps": 20, "lr": 2e-4, "warmup_steps": 2},
        "engine": {"micro_batch_tokens": 1024},
        "eval": {"temperature": 1.0},
    },
    notes="Adapters on every linear layer instead of all weights: on two cores a step takes two thirds of the time. "
    "Short micro-batches, so that it fits in a laptop's memory. "
    "Held-out problems are answered at temperature 1, as the policy samples in training.",
)

PRESETS: dict[str, Preset] = {
    preset.name: preset for preset in (*GRPO_FAMILY, *RATIO_FAMILY, *BASELINE_FAMILY, _DEMO, _DEMO_CHAT)
}


# ---------------------------------------------------------------------- by name


def preset_named(name: str) -> Preset:
    """Raises ConfigError for an unknown name, with the nearest one."""
    if name not in PRESETS:
        problem = FieldProblem("preset", unknown_preset(name), "unknown_preset")
        raise ConfigError(str(problem), (problem,))
    return PRESETS[name]


def unknown_preset(name: str) -> str:
    """What is wrong with the name, which preset may have been meant, and which there are."""
    near = get_close_matches(name.lower().replace("-", "_").replace(".", ""), PRESETS, n=1)
    meant = f"; did you mean {near[0]}?" if near else "."
    return f"{name!r} is not a preset{meant} There are {', '.join(PRESETS)}"


# ---------------------------------------------------------------------- under a config


def apply(preset_name: str, settings: Mapping[str, Any], default_at: Callable[[str], Any]) -> dict[str, Any]:
    """The preset's settings under the given ones, which win field by field; `preset` is set to the name.

    A setting of the preset is dropped where the given settings make a choice under which it has no effect
    (relevance.idle) or another meaning (relevance.CHOICES): a constant with another aggregation, the clip
    range of another loss. `default_at` gives a field's default by its path (`RunConfig.default_at`). Raises ConfigError
    for an unknown name. The result is not checked.
    """
    preset = preset_named(preset_name)
    merged = _merge(deepcopy(dict(preset.settings)), settings)

    def value(path: str) -> Any:
        return value_at(merged, path, default_at(path))

    before = dict(preset.leaves())
    taken = {path for path in before if not _given(settings, path)}
    stale = {
        path
        for choice, numbers in CHOICES.items()
        if value(choice) != before.get(choice, default_at(choice))
        for path in numbers
    }
    for path in taken & stale:
        _drop(merged, path)
    # What is dropped may leave another setting without effect.
    while without := {path for path in taken if _given(merged, path) and idle(path, value) is not None}:
        for path in without:
            _drop(merged, path)
    return {**merged, "preset": preset_name}


# ---------------------------------------------------------------------- nested mappings


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in above.items():
        if isinstance(value, Mapping) and isinstance(below.get(name), dict):
            _merge(below[name], value)
        else:
            below[name] = deepcopy(value)
    return below


def _walk(settings: Any, path: str) -> Iterator[Any]:
    """The values on the way to `path`, as far as there are mappings."""
    for name in path.split("."):
        if not isinstance(settings, Mapping) or name not in settings:
            return
        settings = settings[name]
        yield settings


def _given(settings: Any, path: str) -> bool:
    """Whether the field, or a non-mapping in place of its part, is in `settings`."""
    values = list(_walk(settings, path))
    return bool(values) and (len(values) == path.count(".") + 1 or not isinstance(values[-1], Mapping))


def value_at(settings: Any, path: str, default: Any = None) -> Any:
    values = list(_walk(settings, path))
    return values[-1] if len(values) == path.count(".") + 1 else default


def _drop(settings: dict[str, Any], path: str) -> None:
    *parents, leaf = path.split(".")
    here: Any = settings
    for name in parents:
        here = here[name]
    del here[leaf]
