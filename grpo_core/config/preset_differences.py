"""How a config differs from the preset that it started with, and a preset from the defaults."""

from dataclasses import dataclass
from typing import Any

from grpo_core.config.kinds import LearningConfig
from grpo_core.config.presets import Preset, preset_named, value_at
from grpo_core.config.run import RunConfig


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that a run sets differently from its preset."""

    path: str
    """Dotted, as in the config."""
    paper: Any
    yours: Any

    def __str__(self) -> str:
        return f"{self.path} {written(self.yours)} instead of {written(self.paper)}"


def diff(config: LearningConfig, preset_name: str | None = None) -> list[Difference]:
    """Where the config departs from a preset (its own, unless another is named), only over the fields that the preset
    sets; empty without a preset. Raises ConfigError for an unknown name."""
    name = preset_name or config.preset
    if name is None:
        return []
    yours = config.to_dict()
    return [
        Difference(path, paper, value)
        for path, paper in preset_named(name).leaves()
        if (value := value_at(yours, path)) != paper
    ]


def from_defaults(preset: Preset) -> list[Difference]:
    """What the preset sets differently from Cohort's defaults; `paper` is the default, `yours` the preset's value."""
    return [
        Difference(path, default, value)
        for path, value in preset.leaves()
        if (default := RunConfig.default_at(path)) != value
    ]


def differences_line(config: RunConfig, preset_name: str | None = None) -> str:
    """One line for a person: "differs from DAPO in: sampling.group_size 8 instead of 16"; empty without a preset."""
    name = preset_name or config.preset
    if name is None:
        return ""
    called = preset_named(name).called
    differences = diff(config, name)
    if not differences:
        return f"does not differ from {called} in anything that it sets"
    return f"differs from {called} in: {', '.join(map(str, differences))}"


def written(value: Any) -> str:
    """A value as people write it in a config: 1e-6, not 1e-06; none where there is none."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        mantissa, e, exponent = f"{value:g}".partition("e")
        return mantissa + (f"e{int(exponent)}" if e else "")
    return str(value)
