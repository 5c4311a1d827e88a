"""JSON Schema 2020-12, for the keywords that the record's schema uses and no others.

A schema with a keyword that is not known here is refused whole, because a check must not skip a rule.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from cohort.evidence.canonical import canonical

_ANNOTATIONS = frozenset(
    {"$schema", "$id", "$comment", "$defs", "title", "description", "default", "examples", "format", "deprecated"}
)
"""Annotations, which test nothing; `format` too, which is the specification's default."""
_DEEPEST = 100
_MOST_FAULTS = 20

Fault = str
Test = Callable[["_Location", Any, Any, dict[str, Any]], Iterator[Fault]]


class SchemaFault(ValueError):
    """A schema that this module cannot apply. No judgement on a document."""


def faults(document: Any, schema: dict[str, Any]) -> Iterator[Fault]:
    """The faults of `document` by `schema`, as `path: reason`; empty when it is valid. Raises SchemaFault for a keyword
    that is not known and for a reference that leads nowhere."""
    refuse_unknown(schema)
    return _Location(schema).check(document, schema)


def refuse_unknown(schema: Any) -> None:
    """Raises SchemaFault for the first keyword, anywhere in the schema, that is not known."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise SchemaFault("a schema is an object, true or false")
    for keyword, value in schema.items():
        if keyword not in _TESTS and keyword not in _ANNOTATIONS:
            raise SchemaFault(f"the schema's keyword {keyword!a} is not known here")
        if keyword in ("properties", "$defs"):
            for subschema in value.values():
                refuse_unknown(subschema)
        elif keyword == "anyOf":
            for subschema in value:
                refuse_unknown(subschema)
        elif keyword in ("additionalProperties", "items"):
            refuse_unknown(value)


@dataclass(frozen=True, slots=True)
class _Location:
    """A path in the document, with the whole schema for its references."""

    schema: dict[str, Any]
    path: str = ""
    depth: int = 0

    def check(self, value: Any, schema: Any) -> Iterator[Fault]:
        if schema is True:
            return
        if schema is False:
            yield f"{self}: may not be there"
            return
        if self.depth > _DEEPEST:
            yield f"{self}: nested too deeply"
            return
        for keyword, rule in schema.items():
            if test := _TESTS.get(keyword):
                yield from test(self, value, rule, schema)

    def below(self, value: Any, schema: Any, path: str | None = None) -> Iterator[Fault]:
        """The faults of `value` by a schema within this one, at the same path or at `path`."""
        return _Location(self.schema, self.path if path is None else path, self.depth + 1).check(value, schema)

    def fits(self, value: Any, schema: Any) -> bool:
        return next(self.below(value, schema), None) is None

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def __str__(self) -> str:
        return self.path or "the document"

    def resolve(self, reference: str) -> Any:
        here: Any = self.schema
        head, *way = reference.split("/")
        if head != "#":
            raise SchemaFault(f"the reference {reference!a} leads out of the schema")
        for piece in way:
            name = piece.replace("~1", "/").replace("~0", "~")
            if not isinstance(here, dict) or name not in here:
                raise SchemaFault(f"the reference {reference!a} leads nowhere")
            here = here[name]
        return here


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: is_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": is_number,
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def _same(left: Any, right: Any) -> bool:
    """Equal as JSON values: 1 and 1.0 are, 1 and true are not."""
    if isinstance(left, str) or isinstance(right, str):
        return bool(left == right)
    return canonical(left) == canonical(right)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _type(location: _Location, value: Any, rule: Any, schema: dict[str, Any]) -> Iterator[Fault]:
    names = [rule] if isinstance(rule, str) else rule
    for name in names:
        if name not in _TYPES:
            raise SchemaFault(f"the schema's type {name!a} is not known here")
    if not any(_TYPES[name](value) for name in names):
        yield f"{location}: {_shown(value)} is not of type {' or '.join(names)}"


def _const(location: _Location, value: Any, rule: Any, schema: dict[str, Any]) -> Iterator[Fault]:
    if not _same(value, rule):
        yield f"{location}: {_shown(value)} is not {_shown(rule)}"


def _enum(location: _Location, value: Any, rule: Any, schema: dict[str, Any]) -> Iterator[Fault]:
    if not any(_same(value, allowed) for allowed in rule):
        yield f"{location}: {_shown(value)} is none of {', '.join(map(_shown, rule))}"


def _properties(location: _Location, value: Any, rule: Any, schema: dict[str, Any]) -> Iterator[Fault]:
    if isinstance(value, dict):
        for name, subschema in rule.items():
            if name in value:
                yield from location.below(value[name], subschema, location.at(name))


def _additional(location: _Location, value: Any, rule: Any, schema: dict[str, Any]) -> Iterator[Fault]:
    if isinstance(value, dict):
        for name in value:
            if name in schema.get("properties", {}):
                continue
            if rule is False:
                yield f"{location.at(name)}: is not a field of the format"
            else:
                yield from location.below(value[name], rule, location.at(name))


def _required(location: _Location, value: Any, rule: Any, schema: dict[str, Any]) -> Iterator[Fault]:
    if isinstance(value, dict):
        for name in rule:
            if name not in value:
                yield f"{location.at(name)}: is missing"


def _items(location: _Location, value: Any, rule: Any, schema: dict[str, Any]) -> Iterator[Fault]:
    if isinstance(value, list):
        for index, element in enumerate(value):
            yield from location.below(element, rule, f"{location.path}[{index}]")


def _pattern(location: _Location, value: Any, rule: Any, schema: dict[str, Any]) -> Iterator[Fault]:
    try:
        pattern = re.compile(_ECMA_END.sub(r"\\Z", rule))
    except re.error as error:
        raise SchemaFault(f"the schema's pattern {rule!a} cannot be used: {error}") from None
    if isinstance(value, str) and not pattern.search(value):
        yield f"{location}: {_shown(value)} does not match {rule}"


_ECMA_END = re.compile(r"(?<!\\)\$(?=$|\|)")
"""`$` at an end: in JSON Schema it does not match before a last line end, in Python it does."""


def _min_length(location: _Location, value: Any, rule: Any, schema: dict[str, Any]) -> Iterator[Fault]:
    if isinstance(value, str) and len(value) < rule:
        yield f"{location}: {_shown(value)} has fewer than {rule} characters"


def _minimum(location: _Location, value: Any, rule: Any, schema: dict[str, Any]) -> Iterator[Fault]:
    if is_number(value) and value < rule:
        yield f"{location}: {_shown(value)} is below {rule}"


def _any_of(location: _Location, value: Any, rule: Any, schema: dict[str, Any]) -> Iterator[Fault]:
    if any(location.fits(value, option) for option in rule):
        return
    failures = [list(islice(location.below(value, option), _MOST_FAULTS)) for option in rule]
    nearest = min(failures, key=lambda listed: (len(listed), -len(listed[0].partition(": ")[0])))
    yield nearest[0]  # of the alternative with the fewest faults, the deepest among equals


def _reference(location: _Location, value: Any, rule: Any, schema: dict[str, Any]) -> Iterator[Fault]:
    yield from location.below(value, location.resolve(rule))


_TESTS: dict[str, Test] = {
    "$ref": _reference,
    "type": _type,
    "const": _const,
    "enum": _enum,
    "properties": _properties,
    "additionalProperties": _additional,
    "required": _required,
    "items": _items,
    "minLength": _min_length,
    "pattern": _pattern,
    "minimum": _minimum,
    "anyOf": _any_of,
}
