"""The small schema check judges as `jsonschema` does, and refuses a schema with a rule that it does not know."""

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from cohort.evidence.schema_check import SchemaFault, faults
from cohort.evidence.verify.record import schema
from tests.factories.small_cards import Sealed
from tests.tables import cases

SCHEMA = schema()
ORACLE = Draft202012Validator(SCHEMA)
RECORD = Sealed().seal()
KEYWORDS = cases("records/schema_keywords", "rule", "values")
STRANGE: list[Any] = [
    *(None, True, False, 0, 1, 1.0, -1, 0.5, 1e300, "", "x", "public", "0" * 64, [], [1], {}, {"a": 1}, KeyError)
]
"""What stands in a record's place; KeyError: nothing."""


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield way
    for name in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[name], (*way, name))


def replaced(document: Any, way: tuple[Any, ...], value: Any) -> Any:
    if not way:
        return value
    changed = copy.deepcopy(document)
    here = changed
    for step in way[:-1]:
        here = here[step]
    here[way[-1]] = value
    if value is KeyError:
        del here[way[-1]]
    return changed


def test_judges_mutated_records_as_jsonschema_does() -> None:
    assert not list(faults(RECORD, SCHEMA))
    dice = random.Random(20261122)
    ways = list(places(RECORD))
    judged = {True: 0, False: 0}
    for _ in range(250):
        way, value = dice.choice(ways), dice.choice(STRANGE)
        if value is KeyError and not way:
            continue
        document = replaced(RECORD, way, value)
        fitting = not list(faults(document, SCHEMA))
        assert fitting == ORACLE.is_valid(document), (way, value)
        judged[fitting] += 1
    assert min(judged.values()) > 30


@pytest.mark.parametrize(
    ("way", "value"),
    [
        (("head", "version"), "1"),
        (("sections", "method", "kl", "salt"), "no"),
        (("seal",), KeyError),
        (("seal",), "0" * 64 + "\n"),  # where Python's `$` matches and that of JSON Schema does not
        (("more",), 1),
    ],
    ids=["type", "pattern", "missing", "line-end", "unknown"],
)
def test_names_the_place(way: tuple[str, ...], value: Any) -> None:
    (fault,) = faults(replaced(RECORD, way, value), SCHEMA)
    assert fault.startswith(f"{'.'.join(way)}: ")


@pytest.mark.parametrize(("rule", "values"), KEYWORDS)
def test_every_keyword_as_jsonschema_does(rule: dict[str, Any], values: list[Any]) -> None:
    oracle = Draft202012Validator(rule)
    found = [not list(faults(value, rule)) for value in values]
    assert found == [oracle.is_valid(value) for value in values]
    assert True in found


NAMES = st.sampled_from(["a", "b", "x1", "n", "A"])
SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([0.5, 1.0, 2.0, "", "a", "ab", "x1"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)


@given(st.sampled_from([case.values[0] for case in KEYWORDS]), VALUES)
def test_any_value_as_jsonschema_does(rule: dict[str, Any], value: Any) -> None:
    assert (not list(faults(value, rule))) == Draft202012Validator(rule).is_valid(value)


@pytest.mark.parametrize(("rule", "value"), cases("records/schemas_refused", "rule", "value"))
def test_a_rule_that_is_not_known_or_leads_nowhere_is_never_passed_over(rule: dict[str, Any], value: Any) -> None:
    with pytest.raises(SchemaFault):
        list(faults(value, rule))


def test_a_schema_that_leads_to_itself_ends() -> None:
    rule = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    assert len(list(faults(1, rule))) == 1
