"""What the configs of all kinds of run have in common: how one is read, checked, written and identified.

`grpo_core.config.kinds` reads a config of any kind. Loads no torch.
"""

import hashlib
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import rfc8785
import yaml
from pydantic import Field, model_validator

from grpo_core.config import presets
from grpo_core.config.messages import model_at, validated
from grpo_core.config.yaml_text import dump_yaml, parse_yaml
from grpo_core.errors import ConfigError, Conflict
from grpo_core.specs.fields import Part

Kind = Literal["grpo", "sft", "reward_model", "sample", "distill"]
"""What a run does: trains by GRPO, fine-tunes on given answers, trains a reward model, samples a dataset, fine-tunes a
small model on a large one's samples."""
RunName = Annotated[str, Field(min_length=1, max_length=120)]


class StageConfig(Part):
    """Of one run, of whichever kind."""

    kind: ClassVar[Kind]

    @model_validator(mode="after")
    def _exact_in_json(self) -> Self:
        try:
            rfc8785.dumps(self.model_dump(mode="json"))
        except ValueError as error:
            raise Conflict("not_json", f"holds a value that JSON cannot carry exactly: {error}") from None
        return self

    @classmethod
    def from_dict(cls, data: Any, *, source: str = "config") -> Self:
        """Fill `data` in from its preset, if it names one, and check all of it; raise ConfigError listing every fault
        with its dotted path and the allowed values."""
        data = cls._of_kind(data, source)
        if isinstance(preset := data.get("preset"), str):
            data = presets.apply(preset, data, cls.default_at)
        return validated(cls, data, f"{source} is not a valid run config")

    @classmethod
    def from_whole(cls, data: Any, *, source: str = "config") -> Self:
        """Read what `to_dict` returned, without applying a preset. Raises ConfigError as `from_dict` does."""
        return validated(cls, cls._of_kind(data, source), f"{source} is not a valid run config")

    @classmethod
    def from_text(cls, text: str, *, source: str = "config") -> Self:
        """Read YAML, of which JSON is a part."""
        return cls.from_dict(yaml_content(text, source), source=source)

    @classmethod
    def from_file(cls, path: Path) -> Self:
        return cls.from_text(config_text(path), source=str(path))

    def to_dict(self) -> dict[str, Any]:
        """Every field; `kind` comes first, but of a GRPO run, whose configs are older than the other kinds."""
        fields = self.model_dump(mode="json")
        return fields if self.kind == "grpo" else {"kind": self.kind, **fields}

    def to_yaml(self) -> str:
        return dump_yaml(self.to_dict())

    def digest(self) -> str:
        """SHA-256 of the config's canonical JSON (RFC 8785), as hex."""
        return hashlib.sha256(rfc8785.dumps(self.to_dict())).hexdigest()

    @classmethod
    def default_at(cls, path: str) -> Any:
        """The field's default; None where it has none or there is no such field."""
        *parents, leaf = path.split(".")
        model = model_at(cls, parents)
        field = model.model_fields.get(leaf) if model else None
        return None if field is None or field.is_required() else field.get_default(call_default_factory=True)

    @classmethod
    def _of_kind(cls, data: Any, source: str) -> dict[str, Any]:
        """The fields, without `kind`, which must be this one's where it is given."""
        if not isinstance(data, dict):
            content = "a list" if isinstance(data, list) else "empty" if data is None else "a single value"
            raise ConfigError(f"{source}: a config names fields with their values; this is {content}")
        if (kind := data.get("kind", cls.kind)) != cls.kind:
            raise ConfigError(f"{source} is of kind {kind!r}; a config of kind {cls.kind!r} is expected here")
        return {name: value for name, value in data.items() if name != "kind"}


def yaml_content(text: str, source: str) -> Any:
    """Raises ConfigError."""
    try:
        return parse_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not YAML: {error}") from None


def config_text(path: Path) -> str:
    """Raises ConfigError."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"no such config file: {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read config file {path}: {error}") from None
