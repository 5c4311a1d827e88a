"""The small schema check judges as `jsonschema` does, and refuses a schema with a rule that it does not know."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from cohort.evidence.schema_check import SchemaFault, faults, refuse_unknown
from cohort.evidence.verify.record import schema
from cohort.governance.schema import json_schema
from tests.web.governance.card_made import Sealed

SCHEMA = schema()
ORACLE = Draft202012Validator(SCHEMA)
RECORD = Sealed().seal()


def fits(document: Any) -> bool:
    return not list(faults(document, SCHEMA))


def test_the_schema_that_ships_is_the_one_that_is_published() -> None:
    assert json_schema() == SCHEMA
    Draft202012Validator.check_schema(SCHEMA)
    refuse_unknown(SCHEMA)


def test_a_record_fits() -> None:
    assert fits(RECORD)
    assert ORACLE.is_valid(RECORD)


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield way
    if isinstance(value, dict):
        for name in value:
            yield from places(value[name], (*way, name))
    elif isinstance(value, list):
        for at in range(len(value)):
            yield from places(value[at], (*way, at))


def replaced(document: Any, way: tuple[Any, ...], value: Any) -> Any:
    if not way:
        return value
    changed = copy.deepcopy(document)
    here = changed
    for step in way[:-1]:
        here = here[step]
    if value is KeyError:
        del here[way[-1]]
    else:
        here[way[-1]] = value
    return changed


STRANGE: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    1.0,
    -1,
    0.5,
    1e300,
    "",
    "x",
    "public",
    "0" * 64,
    [],
    [1],
    {},
    {"a": 1},
    KeyError,
]


def test_it_judges_mutated_records_as_jsonschema_does() -> None:
    dice = random.Random(20261122)
    ways = list(places(RECORD))
    judged = {True: 0, False: 0}
    for _ in range(500):
        way, value = dice.choice(ways), dice.choice(STRANGE)
        if value is KeyError and not way:
            continue
        document = replaced(RECORD, way, value)
        fitting = fits(document)
        assert fitting == ORACLE.is_valid(document), (way, value)
        judged[fitting] += 1
    assert min(judged.values()) > 30


def test_it_names_the_place() -> None:
    wrong = replaced(RECORD, ("head", "version"), "1")
    assert list(faults(wrong, SCHEMA)) == ['head.version: "1" is not of type integer']
    wrong = replaced(RECORD, ("sections", "method", "kl", "salt"), "no")
    (fault,) = faults(wrong, SCHEMA)
    assert fault.startswith('sections.method.kl.salt: "no" does not match')
    assert list(faults(replaced(RECORD, ("seal",), KeyError), SCHEMA)) == ["seal: is missing"]
    assert list(faults({**RECORD, "more": 1}, SCHEMA)) == ["more: is not a field of the format"]


def test_a_line_end_behind_a_digest_is_no_digest() -> None:
    """Where Python's `$` matches and that of JSON Schema does not."""
    assert not fits(replaced(RECORD, ("seal",), "0" * 64 + "\n"))


KEYWORDS: list[tuple[dict[str, Any], list[Any]]] = [
    ({"type": "integer"}, [1, 1.0, 1.5, True, None, "1", 10**30]),
    ({"type": ["number", "null"]}, [1, 1.5, None, False, "1"]),
    ({"type": "object"}, [{}, [], None]),
    ({"const": 1}, [1, 1.0, True, "1", [1]]),
    ({"const": {"a": [0]}}, [{"a": [0]}, {"a": [False]}, {"a": [0.0]}, {}]),
    ({"enum": [0, "a", None]}, [0, 0.0, False, "a", None, "b", {}]),
    ({"minimum": 1, "maximum": 3}, [0, 1, 2.5, 3, 4, "0", True]),
    ({"exclusiveMinimum": 1, "exclusiveMaximum": 3}, [1, 1.1, 3, 2, "1"]),
    ({"minLength": 1, "maxLength": 2}, ["", "a", "𝒳𝒳", "abc", 1, []]),
    ({"pattern": "^a.$"}, ["ab", "a", "xab", 1, "abc"]),
    ({"pattern": "b|c$"}, ["b", "ac", "a", "cb"]),
    ({"minItems": 1, "maxItems": 2, "uniqueItems": True}, [[], [1], [1, 1], [1, 1.0], [1, True], [1, 2, 3], {}]),
    ({"items": {"type": "string"}, "prefixItems": [{"type": "integer"}]}, [[], [1], ["a"], [1, "a"], [1, 2], "x"]),
    ({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, [{}, {"a": 1}, {"a": "1"}, {"b": 1}, [], "a"]),
    (
        {"properties": {"a": True}, "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
        [{}, {"a": 1}, {"x1": 1}, {"x1": "1"}, {"b": 1}],
    ),
    ({"additionalProperties": {"type": "integer"}}, [{}, {"a": 1}, {"a": "1"}, []]),
    ({"propertyNames": {"pattern": "^[a-z]+$"}, "minProperties": 1, "maxProperties": 2},
     [{}, {"a": 1}, {"A": 1}, {"a": 1, "b": 2, "c": 3}]),
    ({"anyOf": [{"type": "integer"}, {"minLength": 2}]}, [1, "a", "ab", None, 1.5]),
    ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, [1, 2, 2.5, "a", 1.5]),
    ({"allOf": [{"type": "integer"}, {"minimum": 2}]}, [1, 2, 2.5, "a"]),
    ({"not": {"type": "integer"}}, [1, "a"]),
    ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "integer"}}}, [1, "a"]),
    ({"$ref": "#/$defs/n", "$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}}, "type": "object"}}},
     [{}, {"n": {}}, {"n": {"n": 1}}]),
    ({"properties": {"a": False}}, [{}, {"a": 1}]),
    ({"format": "date-time", "title": "t", "description": "d", "default": 1, "examples": [1]}, ["no date", 1]),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "values"), KEYWORDS, ids=lambda one: next(iter(one)) if isinstance(one, dict) else "")
def test_every_keyword_as_jsonschema_does(rule: dict[str, Any], values: list[Any]) -> None:
    oracle = Draft202012Validator(rule)
    found = [not list(faults(value, rule)) for value in values]
    assert found == [oracle.is_valid(value) for value in values]
    assert True in found


_names = st.sampled_from(["a", "b", "x1", "n", "A"])
_scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([0.5, 1.0, 2.0, "", "a", "ab", "x1"])
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from([rule for rule, _ in KEYWORDS]), _values)
def test_any_value_as_jsonschema_does(rule: dict[str, Any], value: Any) -> None:
    assert (not list(faults(value, rule))) == Draft202012Validator(rule).is_valid(value)


@pytest.mark.parametrize(
    "rule",
    [{"dependentRequired": {}}, {"properties": {"a": {"if": True}}}, {"items": {"contains": {}}},
     {"anyOf": [{"multipleOf": 2}]}, {"$defs": {"unused": {"minContains": 1}}},
     {"not": {"unevaluatedProperties": False}}, {"$dynamicRef": "#a"}, {"discriminator": {}}, {"items": 5}],
    ids=json.dumps,
)  # fmt: skip
def test_a_rule_that_is_not_known_is_never_passed_over(rule: dict[str, Any]) -> None:
    with pytest.raises(SchemaFault):
        list(faults({}, rule))


@pytest.mark.parametrize(
    "rule",
    [{"$ref": "#/$defs/none"}, {"$ref": "other.json"}, {"$ref": "#/type/x"}, {"type": "text"}, {"pattern": "("}],
    ids=json.dumps,
)
def test_schemas_that_lead_nowhere(rule: dict[str, Any]) -> None:
    with pytest.raises(SchemaFault):
        list(faults("a", rule))


def test_a_schema_that_leads_to_itself_ends() -> None:
    rule = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    assert list(faults(1, rule)) == ["the document: nested too deeply"]
