"""Between a config's values and the texts in a form's inputs, both ways without loss.

A text that cannot be read as its field's type is handed on as it is, so that RunConfig itself says what is wrong.
"""

import json
from collections.abc import Mapping
from typing import Any

import yaml

from cohort.web.launch.schema import FieldSpec, fields
from cohort.web.launch.variants import DEFAULT
from grpo_core.config.presets import Preset

_VARIANT = ("algorithm.advantage", "algorithm.scale", "algorithm.std_ddof")
"""What a variant's value is made of, in order."""


def preset_source(preset: Preset) -> str:
    """The paper, or our own preset's name."""
    return preset.paper if preset.paper != "Cohort" else preset.name


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


def texts_of(config: Mapping[str, Any]) -> dict[str, str]:
    """What the inputs show for `config`, a whole or partial RunConfig as nested dict; what it lacks is its default."""
    found = {path: to_text(spec, lookup(config, path, spec.default)) for path, spec in fields().items()}
    default = DEFAULT.split("/")
    parts = [str(lookup(config, path, default[place])) for place, path in enumerate(_VARIANT)]
    return {**found, "variant": "/".join(parts)}


def settings_of(texts: dict[str, str]) -> dict[str, Any]:
    """The nested settings that the inputs' texts say. Fields with no text given are left at their default."""
    settings: dict[str, Any] = {}
    for path, spec in fields().items():
        if path in texts:
            put(settings, path, from_text(spec, texts[path]))
    if variant := texts.get("variant"):
        for path, part in zip(_VARIANT, variant.split("/"), strict=False):
            put(settings, path, int(part) if part in ("0", "1") else part)
    return settings


def lookup(config: Mapping[str, Any], path: str, default: Any = None) -> Any:
    here: Any = config
    for piece in path.split("."):
        if not isinstance(here, Mapping) or piece not in here:
            return default
        here = here[piece]
    return here


def put(settings: dict[str, Any], path: str, value: Any) -> None:
    *parents, leaf = path.split(".")
    for parent in parents:
        settings = settings.setdefault(parent, {})
    settings[leaf] = value
