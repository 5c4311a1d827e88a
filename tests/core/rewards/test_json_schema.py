"""json_schema pays a value of the wanted shape, whatever else the completion holds, and fetches nothing."""

import json
from typing import Any

import pytest

from tests.core.rewards.scoring import refused, taken, told, value

PERSON = {
    "type": "object",
    "required": ["name", "age"],
    "additionalProperties": False,
    "properties": {"name": {"type": "string"}, "age": {"$ref": "#/$defs/age"}},
    "$defs": {"age": {"type": "integer", "minimum": 0}},
}


@pytest.mark.parametrize(
    ("completion", "detail"),
    [
        ('{"name": "Ada", "age": 36}', None),
        ('```json\n{"name": "Ada", "age": 36}\n```', None),
        ('Here:\n```\n[1]\n```\nand better:\n```JSON\n{"name": "Ada", "age": 36}\n```\nDone.', None),
        ('{"name": "Ada", "age": 36.0}', None),
        ('{"name": "Ada", "age": "36"}', "age: '36' is not of type 'integer'"),
        ('{"name": "Ada", "age": true}', "age: True is not of type 'integer'"),
        ('{"name": "Ada", "age": -1}', "age: -1 is less than the minimum of 0"),
        ('{"name": "Ada"}', "the value: 'age' is a required property"),
        ('{"name": "Ada", "age": 1, "x": 1}', "the value: Additional properties are not allowed ('x' was unexpected)"),
        ("[]", "the value: [] is not of type 'object'"),
        ('{"name": "Ada", "age": 1', "not JSON: Expecting ',' delimiter (line 1, column 25)"),
        ("", "not JSON: Expecting value (line 1, column 1)"),
        ("It is Ada.", "not JSON: Expecting value (line 1, column 1)"),
        ('{"name": "Ada", "age": 1, "age": 2}', "not JSON that can be taken: the name 'age' is given twice"),
        ('{"name": "Ada", "age": NaN}', "not JSON that can be taken: NaN is no JSON number"),
        ('{"name": "Ada", "age": 1e999}', "not JSON that can be taken: 1e999 is too large a number"),
    ],
)
def test_values(completion: str, detail: str | None) -> None:
    found = told("json_schema", completion, json_schema=PERSON)
    assert found.value == float(detail is None)
    if detail is not None:
        assert found.detail == detail


@pytest.mark.parametrize(
    "completion", ["[" * 100_000, '{"a":' * 50_000, "9" * 5000, '"' + "\\u0000" * 9, "[" + "1," * 50_000]
)
def test_hostile_text_is_paid_nothing(completion: str) -> None:
    found = told("json_schema", completion, json_schema=PERSON)
    assert (found.value, found.error) == (0, None)


def test_depth_that_parses_but_cannot_be_compared() -> None:
    nested = {"$ref": "#/$defs/list", "$defs": {"list": {"type": "array", "items": {"$ref": "#/$defs/list"}}}}
    assert value("json_schema", "[" * 5 + "]" * 5, json_schema=nested) == 1
    found = told("json_schema", "[" * 900 + "]" * 900, json_schema=nested)
    assert (found.value, found.detail) == (0, "nested too deeply to be compared")


def test_a_value_that_parses_may_earn_a_part() -> None:
    assert value("json_schema", '{"name": 1}', json_schema=PERSON, parses=0.25) == 0.25
    assert value("json_schema", "{name}", json_schema=PERSON, parses=0.25) == 0


def test_where_the_value_stands() -> None:
    fenced, tagged = '```json\n{"a": 1}\n```', '<answer>{"a": 1}</answer>'
    assert [value("json_schema", fenced, extract=how) for how in ("fence", "whole", "answer_tag")] == [1, 0, 0]
    assert [value("json_schema", tagged, extract=how) for how in ("fence", "whole", "answer_tag")] == [0, 0, 1]
    assert value("json_schema", '```json\n{"a": 1}') == 0


def test_a_schema_of_each_problem() -> None:
    for schema in (PERSON, json.dumps(PERSON)):
        given: dict[str, Any] = {"column": "shape", "meta": {"shape": schema}}
        assert value("json_schema", '{"name": "Ada", "age": 36}', **given) == 1
        assert value("json_schema", "{}", **given) == 0
    for wrong, fault in (("{", "is no JSON"), (None, "must be an object"), ({"type": "thing"}, "is no JSON Schema")):
        found = told("json_schema", "{}", column="shape", meta={"shape": wrong})
        assert found.error_class == "sample"
        assert fault in (found.error or "")
    assert taken("json_schema", column="shape").columns == {"shape": "a"}


def deep(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(levels):
        found = {"items": found}
    return found


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"type": "thing"}, "is no JSON Schema: type: 'thing' is not valid"),
        ({"properties": {"a": {"pattern": "("}}}, "is no JSON Schema: properties.a.pattern"),
        (
            {"$ref": "https://example.org/schema.json"},
            "refers to 'https://example.org/schema.json'; a reference may only",
        ),
        ({"$ref": "file:///etc/passwd"}, "refers to 'file:///etc/passwd'"),
        ({"$ref": "#/$defs/gone"}, "refers to '#/$defs/gone', which is not in it"),
        ({"$id": "https://example.org/"}, "has an $id"),
        (deep(50), "is nested more than 40 deep"),
        ({"enum": ["a" * 70_000]}, "is longer than 65,536 characters"),
    ],
)
def test_schemas_that_are_refused(schema: dict[str, Any], fault: str) -> None:
    assert refused("json_schema", json_schema=schema)["json_schema"].startswith(fault)


def test_a_schema_of_itself_is_an_error_of_the_schema() -> None:
    endless = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    found = told("json_schema", "1", json_schema=endless)
    assert (found.value, found.error_class) == (None, "sample")
    assert "refers to itself without end" in (found.error or "")


def test_parameters() -> None:
    assert refused("json_schema", json_schema=PERSON, column="shape")["json_schema"].startswith("leave it empty")
    assert "parses" in refused("json_schema", parses=1)
    assert taken("json_schema", json_schema={"properties": {"$ref": {"type": "string"}, "$id": {}}})
