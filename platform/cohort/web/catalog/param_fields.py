"""A reward kind's parameters as fields of a form, read off the kind's own pydantic model.

A parameter added to a kind appears in the form by itself, with its docstring as help. Values stay what the kind takes:
what equals the default and was never given is left out, so that a form that is saved unchanged is the same reward.
"""

import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from django import forms
from django.core.exceptions import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from grpo_core.config.yaml_text import dump_yaml, parse_yaml
from grpo_core.rewards import KINDS

PREFIX = "p_"
"""Before a parameter's name in the names of the form's fields, so that none is taken for kind, name or weight."""
MAX_CHARS = 70_000
_CODE = frozenset({"source"})
_LONG = frozenset({"template", "system", "prompt", "question"})

Shape = Literal["choice", "checks", "switch", "integer", "number", "text", "long", "lines", "code", "yaml"]


@dataclass(frozen=True)
class ParamSpec:
    """One parameter of a kind."""

    name: str
    shape: Shape
    choices: tuple[str, ...]
    default: Any
    """As JSON; None where there is none."""
    required: bool
    optional: bool
    """Empty is a value of its own."""
    help: str

    @property
    def field(self) -> str:
        return PREFIX + self.name

    @property
    def default_text(self) -> str:
        """What an empty field means."""
        if self.required or self.default is None or self.default in ("", [], {}):
            return ""
        if self.shape == "switch":
            return "on" if self.default else "off"
        return dump_yaml(self.default).strip().removesuffix("\n...") if self.shape == "yaml" else str(self.default)

    @property
    def label(self) -> str:
        for ending, unit in (("_mb", "MiB"), ("_seconds", "seconds")):
            if self.name.endswith(ending):
                return f"{self.name.removesuffix(ending).replace('_', ' ').capitalize()}, {unit}"
        return self.name.replace("_", " ").capitalize()

    def form_field(self) -> forms.Field:
        """Never required by the form itself: the kind says what is missing, in the same words for every way in."""
        label = self.label
        common: dict[str, Any] = {"label": label, "help_text": self.help, "required": False}
        area = {"spellcheck": "false", "autocomplete": "off"}
        match self.shape:
            case "choice":
                none = [] if self.default is not None else [("", "choose" if self.required else "none")]
                return forms.ChoiceField(choices=[*none, *((one, one) for one in self.choices)], **common)
            case "checks":
                return _Checks(
                    choices=[(one, one) for one in self.choices], widget=forms.CheckboxSelectMultiple, **common
                )
            case "switch":
                return forms.NullBooleanField(**{**common, "widget": _Switch()})
            case "integer":
                return forms.IntegerField(
                    widget=forms.TextInput(attrs={**area, "inputmode": "numeric"}), localize=False, **common
                )
            case "number":
                return forms.FloatField(
                    widget=forms.TextInput(attrs={**area, "inputmode": "decimal"}), localize=False, **common
                )
            case "text":
                return forms.CharField(strip=False, max_length=MAX_CHARS, widget=forms.TextInput(attrs=area), **common)
            case "lines":
                common["help_text"] = f"{self.help} One a line."
                return _Lines(strip=False, max_length=MAX_CHARS, widget=forms.Textarea({**area, "rows": 2}), **common)
            case "code":
                return _Text(max_length=MAX_CHARS, strip=False, widget=forms.Textarea({**area, "rows": 18}), **common)
            case "long":
                return _Text(max_length=MAX_CHARS, strip=False, widget=forms.Textarea({**area, "rows": 5}), **common)
            case "yaml":
                common["help_text"] = f"{self.help} Written as YAML or JSON."
                return _Yaml(strip=False, max_length=MAX_CHARS, widget=forms.Textarea({**area, "rows": 4}), **common)

    def shown(self, value: Any) -> Any:
        """The value as its field shows it."""
        if value is None:
            return None
        if self.shape == "lines" and isinstance(value, list | tuple):
            return "\n".join(map(str, value))
        if self.shape == "yaml":
            return dump_yaml(value).strip().removesuffix("\n...") if value not in ({}, []) else ""
        return value


class _Switch(forms.CheckboxInput):
    """A box that says no by the hidden field beside it, so that one that was never sent says nothing."""

    def value_from_datadict(self, data: Any, files: Any, name: str) -> Any:
        return super().value_from_datadict(data, files, name) if name in data else None


class _Text(forms.CharField):
    """Lines end as they do in files, whatever the browser sends."""

    def to_python(self, value: Any) -> str:
        return str(super().to_python(value) or "").replace("\r\n", "\n")


class _Lines(_Text):
    def clean(self, value: Any) -> Any:
        return [line for line in super().clean(value).split("\n") if line.strip()] or None


class _Checks(forms.MultipleChoiceField):
    def clean(self, value: Any) -> Any:
        return super().clean(value) or None


class _Yaml(_Text):
    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        try:
            return parse_yaml(text)
        except yaml.YAMLError as error:
            raise ValidationError(f"This is not YAML: {error}") from None


@cache
def param_specs(kind: str) -> tuple[ParamSpec, ...]:
    """Of a kind that exists; none of one that does not."""
    if kind not in KINDS:
        return ()
    return tuple(_spec(name, info) for name, info in KINDS[kind].params.model_fields.items())


def given_params(
    kind: str, cleaned: Mapping[str, Any], *, sent: frozenset[str], before: frozenset[str]
) -> dict[str, Any]:
    """Parameters as the kind takes them. `sent`: names of fields that the page had; `before`: parameters that the
    reward which the form began with had written out, and which stay written out."""
    found: dict[str, Any] = {}
    for spec in param_specs(kind):
        value = cleaned.get(spec.field)
        if value in (None, ""):
            if spec.optional and spec.default is not None and spec.field in sent:
                found[spec.name] = None
            continue
        if value != spec.default or spec.name in before:
            found[spec.name] = value
    return found


def shown_params(kind: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Initial values of the fields: what is given, else the default."""
    return {spec.field: spec.shown(params.get(spec.name, spec.default)) for spec in param_specs(kind)}


def _spec(name: str, info: FieldInfo) -> ParamSpec:
    inner, optional = _unwrapped(info.annotation)
    required = info.is_required()
    default = None if required else to_jsonable_python(info.get_default(call_default_factory=True))
    choices: tuple[str, ...] = ()
    shape: Shape = "yaml"
    if get_origin(inner) is Literal and all(isinstance(one, str) for one in get_args(inner)):
        shape, choices = "choice", get_args(inner)
    elif inner is bool and not optional:
        shape = "switch"
    elif inner is int:
        shape = "integer"
    elif inner is float:
        shape = "number"
    elif inner is str:
        long = name in _LONG or "\n" in str(default or "")
        shape = "code" if name in _CODE else "long" if long else "text"
    elif get_origin(inner) in (tuple, list):
        item, _ = _unwrapped(get_args(inner)[0])
        if item is str:
            shape = "lines"
        elif get_origin(item) is Literal:
            shape, choices = "checks", get_args(item)
    return ParamSpec(
        name=name,
        shape=shape,
        choices=choices,
        default=None if default is PydanticUndefined else default,
        required=required,
        optional=optional,
        help=" ".join((info.description or "").replace("`", "").split()),
    )


def _unwrapped(annotation: Any) -> tuple[Any, bool]:
    """The plain type inside Optional and Annotated, and whether None is allowed."""
    optional = False
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation = get_args(annotation)[0]
        elif origin in (Union, types.UnionType) and type(None) in get_args(annotation):
            rest = [one for one in get_args(annotation) if one is not type(None)]
            if len(rest) > 1:
                return object, True
            annotation, optional = rest[0], True
        else:
            return annotation, optional


KIND_GROUPS: tuple[tuple[str, frozenset[str]], ...] = (
    ("Rules of the text", frozenset({"here", "aside"})),
    ("Code, in the sandbox", frozenset({"sandbox"})),
    ("Models", frozenset({"model"})),
    ("Asks a server", frozenset({"judge"})),
)
PLACES = {
    "here": "A rule of Cohort’s own: microseconds a completion, in any process.",
    "aside": "A rule of Cohort’s own that a text can make slow: in a process that is killed at its deadline.",
    "sandbox": "Runs code that a person or a model wrote: only in the sandbox of a worker.",
    "model": "Runs a model’s weights in the trainer’s process, on its device.",
    "judge": "Asks a server from the worker; calls cost time, and may cost money.",
}
"""Where a kind runs, for forms."""


def kind_choices() -> list[tuple[str, list[tuple[str, str]]]]:
    """Every kind under the heading of the place where it runs."""
    found = []
    for heading, places in KIND_GROUPS:
        held = [(name, f"{name}: {kind.summary}") for name, kind in KINDS.items() if kind.place in places]
        if held:
            found.append((heading, held))
    return found


def place_of(kind: str) -> str:
    return PLACES[KINDS[kind].place] if kind in KINDS else ""
