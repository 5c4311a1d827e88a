"""Fields of a form, read off a pydantic model: label, help, kind of input, choices, limits, and value to text and back.

The only such reader, for the run form, rewards and the lab. Every check is the model's own, and the path of a
FieldProblem names the field that it belongs to.
"""

import types
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from django import forms
from django.core.exceptions import ValidationError
from pydantic import BaseModel, TypeAdapter
from pydantic import ValidationError as PydanticError
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from grpo_core.config.messages import field_problems
from grpo_core.config.yaml_text import dump_yaml, parse_yaml
from grpo_core.errors import FieldProblem
from grpo_core.specs.fields import CODE, LONG

T = TypeVar("T")
Kind = Literal["integer", "number", "text", "long", "code", "switch", "choice", "checks", "lines", "yaml"]
MAX_CHARS = 200_000
_ROWS = {"lines": 2, "yaml": 4, "long": 5, "code": 18}
_NOTES = {"lines": " One a line.", "yaml": " Written as YAML or JSON."}
_UNITS = (("_mb", "MiB"), ("_seconds", "seconds"))


@dataclass(frozen=True)
class FieldSpec:
    path: str
    """Dotted, below the model that was read."""
    label: str
    help: str
    kind: Kind
    choices: tuple[Any, ...]
    default: Any
    """As JSON; None where there is none."""
    required: bool
    optional: bool
    """Empty is a separate value (None)."""
    limits: str
    """The allowed range in words; empty when there is none."""
    info: FieldInfo = field(repr=False, compare=False)

    @property
    def default_text(self) -> str:
        """What an empty field means."""
        if self.kind == "switch":
            return "on" if self.default else "off"
        if self.required or self.default in (None, "", [], {}):
            return ""
        return self.to_text(self.default).replace("\n", ", ")

    def to_text(self, value: Any) -> str:
        match self.kind:
            case _ if value is None:
                return ""
            case "switch":
                return "true" if value else "false"
            case "lines" | "checks":
                return "\n".join(map(str, value))
            case "yaml":
                return dump_yaml(value).strip().removesuffix("\n...") if value not in ({}, []) else ""
            case _:
                return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)

    def from_text(self, text: str) -> Any:
        """A text that cannot be read as its field's type is passed on unchanged, so that the model reports it.
        Raises yaml.YAMLError."""
        text = text.replace("\r\n", "\n")
        plain = text.strip().replace("\N{MINUS SIGN}", "-")
        if not plain and (self.optional or self.kind not in ("text", "long", "code", "choice")):
            return self.default if self.default in ([], {}) and self.kind in ("yaml", "lines") else None
        match self.kind:
            case "integer" | "number":
                try:
                    return int(plain) if self.kind == "integer" else float(plain)
                except ValueError:
                    return text.strip()
            case "switch":
                return {"true": True, "false": False}.get(plain, plain)
            case "choice":
                return next((choice for choice in self.choices if str(choice) == plain), plain)
            case "lines" | "checks":
                return [line for line in text.split("\n") if line.strip()]
            case "yaml":
                return parse_yaml(text)
            case _:
                return text

    def faults(self, value: Any) -> list[str]:
        """Validation errors of the field alone; the whole model checks how fields fit together."""
        annotated: Any = Annotated[self.info.annotation, self.info]
        try:
            TypeAdapter(annotated).validate_python(value)
        except PydanticError as error:
            return [problem.message for problem in field_problems(error, model=BaseModel)]
        return []

    def form_field(self, **more: Any) -> "ModelField":
        return ModelField(self, **more)


class _Switch(forms.CheckboxInput):
    """A checkbox with a hidden input before it for "no", so that an absent field is distinct from an unticked one."""

    def __init__(self) -> None:
        super().__init__(check_test=lambda value: value in (True, "true", "on"))

    def format_value(self, value: Any) -> str:
        return "true"

    def value_from_datadict(self, data: Any, files: Any, name: str) -> Any:
        return data.get(name, "")


class ModelField(forms.Field):
    """A field of a model in a Django form. What is empty is left to the model, unless it is required."""

    def __init__(self, spec: FieldSpec, *, required: bool = False, **more: Any) -> None:
        self.spec = spec
        about = spec.help + _NOTES.get(spec.kind, "")
        super().__init__(
            required=required,
            **{"label": spec.label, "help_text": about, "initial": spec.default, "widget": self._input(), **more},
        )

    def _input(self) -> forms.Widget:
        spec = self.spec
        attrs: dict[str, Any] = {"spellcheck": "false", "autocomplete": "off"}
        choices = [(str(choice), str(choice)) for choice in spec.choices]
        match spec.kind:
            case "choice":
                none = [] if spec.default is not None else [("", "choose" if spec.required else "none")]
                return forms.Select(choices=[*none, *choices])
            case "checks":
                return forms.CheckboxSelectMultiple(choices=choices)
            case "switch":
                return _Switch()
            case "integer" | "number" | "text":
                mode = {"integer": "numeric", "number": "decimal"}.get(spec.kind)
                return forms.TextInput({**attrs, **({"inputmode": mode} if mode else {})})
            case _:
                return forms.Textarea({**attrs, "rows": _ROWS[spec.kind]})

    def prepare_value(self, value: Any) -> Any:
        return value if isinstance(value, str) or self.spec.kind == "checks" else self.spec.to_text(value)

    def clean(self, value: Any) -> Any:
        text = "\n".join(value) if isinstance(value, list) else str(value or "")
        if len(text) > MAX_CHARS:
            raise ValidationError(f"At most {MAX_CHARS:,} characters are taken; these are {len(text):,}.")
        try:
            read = self.spec.from_text(text)
        except yaml.YAMLError as error:
            raise ValidationError(f"This is not YAML: {error}") from None
        if read in (None, "", [], {}):
            if self.required:
                raise ValidationError(self.error_messages["required"], code="required")
            return None
        if faults := self.spec.faults(read):
            raise ValidationError(faults)
        return read


class ServiceForm(forms.Form):
    """A form for the arguments of one service; what the service refuses becomes the form's errors."""

    def call(self, service: Callable[..., T], **arguments: Any) -> T | None:
        """What the service returns; None where it raised ValidationError."""
        try:
            return service(**arguments)
        except ValidationError as error:
            self.take(error)
        return None

    def take(self, error: ValidationError) -> None:
        """Add each error to the field of the same name; else to the whole form."""
        if not hasattr(error, "error_dict"):
            self.add_error(None, error)
            return
        for name, faults in error.error_dict.items():
            self.add_error(name if name in self.fields else None, faults)

    def add_problem(self, problem: FieldProblem, path: Sequence[str]) -> None:
        """Add a problem to the field that its path, below this form, begins with; else to the whole form, in full."""
        if path and path[0] in self.fields:
            self.add_error(path[0], ": ".join(filter(None, [".".join(path[1:]), problem.message])))
        else:
            self.add_error(None, str(problem))

    @property
    def status(self) -> int:
        """HTTP status of the page that shows it."""
        return 422 if self.errors else 200


def leaves(model: type[BaseModel], *, whole: Collection[str] = (), prefix: str = "") -> Iterator[FieldSpec]:
    """Every field of the model and of the models in it, in its order; those in `whole` are not descended into."""
    for name, info in model.model_fields.items():
        path, inner = prefix + name, info.annotation
        if path not in whole and isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from leaves(inner, whole=whole, prefix=path + ".")
        else:
            yield _spec(path, info)


@cache
def field_spec(model: type[BaseModel], name: str) -> FieldSpec:
    return _spec(name, model.model_fields[name])


def _spec(path: str, info: FieldInfo) -> FieldSpec:
    inner, optional, metadata = _unwrapped(info.annotation, list(info.metadata))
    default = None if info.is_required() else to_jsonable_python(info.get_default(call_default_factory=True))
    kind, choices = _kind(inner, optional, metadata)
    return FieldSpec(
        path=path,
        label=info.title or _label(path.rsplit(".", 1)[-1]),
        help=" ".join((info.description or "").replace("`", "").split()),
        kind=kind,
        choices=choices,
        default=default,
        required=info.is_required(),
        optional=optional,
        limits=_limits(metadata),
        info=info,
    )


def _kind(inner: Any, optional: bool, metadata: list[Any]) -> tuple[Kind, tuple[Any, ...]]:
    if get_origin(inner) is Literal:
        return "choice", get_args(inner)
    if inner is bool and not optional:
        return "switch", ()
    if inner is str:
        return ("code" if CODE in metadata else "long" if LONG in metadata else "text"), ()
    if get_origin(inner) in (tuple, list):
        item, _, of_item = _unwrapped(get_args(inner)[0], [])
        if item is str:
            return ("yaml" if LONG in of_item else "lines"), ()
        if get_origin(item) is Literal:
            return "checks", get_args(item)
    return ("integer" if inner is int else "number" if inner is float else "yaml"), ()


def _label(name: str) -> str:
    for ending, unit in _UNITS:
        if name.endswith(ending):
            return f"{_label(name.removesuffix(ending))}, {unit}"
    return name.replace("_", " ").capitalize()


def _unwrapped(annotation: Any, metadata: list[Any]) -> tuple[Any, bool, list[Any]]:
    """The plain type inside Optional and Annotated, whether None is allowed, and the metadata found on the way."""
    optional = False
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation, *extra = get_args(annotation)
            for item in extra:
                metadata += item.metadata if isinstance(item, FieldInfo) else [item]
        elif origin in (Union, types.UnionType) and type(None) in get_args(annotation):
            annotation, *others = [part for part in get_args(annotation) if part is not type(None)]
            optional = True
            if others:
                return object, optional, metadata
        else:
            return annotation, optional, metadata


def _limits(metadata: list[Any]) -> str:
    """A bound of a million or more only catches typos, and is not shown."""
    bounds: dict[str, str] = {}
    for item in metadata:
        for name in ("ge", "gt", "le", "lt"):
            bound = getattr(item, name, None)
            if bound is not None and bound < 1e6:
                bounds[name] = f"{bound:g}"
    low = f"above {bounds['gt']}" if "gt" in bounds else bounds.get("ge", "")
    high = f"below {bounds['lt']}" if "lt" in bounds else bounds.get("le", "")
    if low and high:
        return f"{low} to {high}"
    return f"{low} or more" if "ge" in bounds else f"at most {high}" if "le" in bounds else low or high
