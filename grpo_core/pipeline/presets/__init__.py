"""The papers' pipelines as YAML files, one each. Its first line is its title; the lines of its head that begin with a
dash say what differs from the paper. Loads no torch.

Models and files in them are placeholders: `base` and `small` are model folders, the rest files of people.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from grpo_core.errors import ConfigError

_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class PipelinePreset:
    name: str
    title: str
    text: str
    """YAML with comments."""
    differences: tuple[str, ...]
    """From the paper, a sentence or more each."""


@cache
def pipeline_presets() -> tuple[PipelinePreset, ...]:
    """All of them, by name."""
    return tuple(_read(path) for path in sorted(_HERE.glob("*.yaml")))


def pipeline_preset(name: str) -> PipelinePreset:
    """Raises ConfigError for an unknown name."""
    for preset in pipeline_presets():
        if preset.name == name:
            return preset
    names = ", ".join(preset.name for preset in pipeline_presets())
    raise ConfigError(f"there is no pipeline preset {name!r}; there are {names}")


def _read(path: Path) -> PipelinePreset:
    text = path.read_text(encoding="utf-8")
    head = [line.removeprefix("#").strip() for line in re.match(r"(#.*\n)+", text)[0].splitlines()]  # type: ignore[index]
    differences: list[str] = []
    for line in head:
        if line.startswith("- "):
            differences.append(line[2:])
        elif differences and line:
            differences[-1] += f" {line}"
    return PipelinePreset(path.stem, head[0], text, tuple(differences))
