"""Records cross the wire unchanged, and hold nothing that JSON cannot."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from grpo_core import records
from tests.tables import cases

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
ALL = cases("core/records", "record")


@pytest.mark.parametrize("record", ALL)
def test_every_record_comes_back_as_it_was(record: dict[str, Any]) -> None:
    envelope = records.ENVELOPE.validate_python({"seq": 7, "at": AT, "record": record})
    assert envelope.record.model_dump(mode="json") == record
    assert records.ENVELOPE.validate_json(envelope.model_dump_json()) == envelope


def test_every_kind_is_covered() -> None:
    kinds = records.ENVELOPE.json_schema()["properties"]["record"]["discriminator"]["mapping"]
    assert {case.values[0]["kind"] for case in ALL} == set(kinds)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_must_be_finite(number: float) -> None:
    with pytest.raises(ValidationError):
        records.StepMetrics(step=1, metrics={"kl": number})
    with pytest.raises(ValidationError):
        records.ComponentScore(value=number)


@pytest.mark.parametrize(
    "changed",
    [
        {"seq": 0},
        {"at": datetime(2026, 1, 1)},
        {"record": {"kind": "event", "type": "a", "message": "b", "x": 1}},
        {"record": {"kind": "rumour"}},
    ],
    ids=["seq 0", "no time zone", "unknown field", "unknown kind"],
)
def test_what_is_no_envelope_is_refused(changed: dict[str, object]) -> None:
    record = {"kind": "event", "type": "a", "message": "b"}
    assert records.ENVELOPE.validate_python({"seq": 1, "at": AT, "record": record})
    with pytest.raises(ValidationError):
        records.ENVELOPE.validate_python({"seq": 1, "at": AT, "record": record, **changed})
