"""Between a config's values and the texts in a form's inputs, both ways without loss.

A text that cannot be read as its field's type is handed on as it is, so that RunConfig itself says what is wrong.
"""

import json
from typing import Any

import yaml

from cohort.runs.forms.schema import FieldSpec, fields
from grpo_core.presets import Preset

VARIANTS = {
    "group_std/0": "z-score in the group, population std",
    "group_std/1": "z-score in the group, sample std",
    "batch_std/0": "batch std",
    "none/0": "mean only (Dr. GRPO)",
}
"""The normalization variant as one choice: `algorithm.scale` and `algorithm.std_ddof`."""
_LESS_USUAL = {"batch_std/1": "batch std, sample std", "none/1": "mean only, sample std for display"}
"""Shown only when a config that came from elsewhere uses them, so that nothing is lost."""


def variant_choices(current: str) -> dict[str, str]:
    return VARIANTS | ({current: _LESS_USUAL[current]} if current in _LESS_USUAL else {})


def variant_label(scale: str, std_ddof: int) -> str:
    return (VARIANTS | _LESS_USUAL)[f"{scale}/{std_ddof}"]


def variant_short(scale: str, std_ddof: int) -> str:
    """For a column of a table."""
    return {"group_std": "population std" if std_ddof == 0 else "sample std", "batch_std": "batch std"}.get(
        scale, "mean only"
    )


def preset_source(preset: Preset) -> str:
    """The paper, or our own preset's name."""
    return preset.paper if preset.paper != "Cohort" else preset.name


def preset_name(preset: Preset) -> str:
    """The same in a sentence."""
    return preset.paper if preset.paper != "Cohort" else f"preset {preset.name}"


def to_text(spec: FieldSpec, value: Any) -> str:
    if value is None:
        return ""
    if spec.kind == "switch":
        return "true" if value else "false"
    if spec.kind == "yaml":
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return str(value)


def from_text(spec: FieldSpec, text: str) -> Any:
    if spec.kind == "lines":
        return text.replace("\r\n", "\n")
    stripped = text.strip()
    if stripped == "" and (spec.optional or spec.kind not in ("text", "choice")):
        return None
    match spec.kind:
        case "integer" | "number":
            return _number(spec, stripped)
        case "switch":
            return {"true": True, "false": False}.get(stripped, stripped)
        case "choice":
            # Literal[0, 1] wants the number, not the text.
            return type(spec.default)(stripped) if isinstance(spec.default, int) and stripped.isdigit() else stripped
        case "yaml":
            try:
                return yaml.safe_load(stripped)
            except yaml.YAMLError:
                return stripped
        case _:
            return stripped


def _number(spec: FieldSpec, text: str) -> Any:
    plain = text.replace("\N{MINUS SIGN}", "-")
    try:
        return int(plain) if spec.kind == "integer" else float(plain)
    except ValueError:
        return text


def texts_of(config: dict[str, Any]) -> dict[str, str]:
    """What the inputs show for `config`, a whole or partial RunConfig as nested dict; what it lacks is its default."""
    found = {path: to_text(spec, lookup(config, path, spec.default)) for path, spec in fields().items()}
    scale = lookup(config, "algorithm.scale", "group_std")
    ddof = lookup(config, "algorithm.std_ddof", 0)
    return {**found, "variant": f"{scale}/{ddof}"}


def settings_of(texts: dict[str, str]) -> dict[str, Any]:
    """The nested settings that the inputs' texts say. Fields with no text given are left at their default."""
    settings: dict[str, Any] = {}
    for path, spec in fields().items():
        if path in texts:
            put(settings, path, from_text(spec, texts[path]))
    if variant := texts.get("variant"):
        scale, _, ddof = variant.partition("/")
        put(settings, "algorithm.scale", scale)
        put(settings, "algorithm.std_ddof", int(ddof) if ddof.isdigit() else ddof)
    return settings


def lookup(config: dict[str, Any], path: str, default: Any = None) -> Any:
    here: Any = config
    for piece in path.split("."):
        if not isinstance(here, dict) or piece not in here:
            return default
        here = here[piece]
    return here


def put(settings: dict[str, Any], path: str, value: Any) -> None:
    *parents, leaf = path.split(".")
    for parent in parents:
        settings = settings.setdefault(parent, {})
    settings[leaf] = value
