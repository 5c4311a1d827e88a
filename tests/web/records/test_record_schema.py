"""The published schema of records, the fields that the mission asks for, and what is no record."""

import json
from typing import Any

import jsonschema
import pytest

from cohort.base.paths import ROOT
from cohort.evidence.record import AUDIENCES
from cohort.evidence.schema_check import faults, refuse_unknown
from cohort.records.cards.topics import EU_FORM, NIST_RMF
from cohort.records.fields import FIELDS
from cohort.records.schema import Document, json_schema
from cohort.records.sections.budget import rated_watts
from cohort.records.statements.questions import BY_FIELD, QUESTIONS
from tests.factories.documents import document, entry
from tests.tables import cases

TAMPERED: list[tuple[tuple[str, ...], Any]] = [
    (("sections", "reward", "domain"), None),
    (("sections", "reward", "more"), entry("x")),
    (("sections", "reward", "domain", "audience"), "everyone"),
    (("sections", "behaviour", "performance", "value"), [{"verdict": 1}]),
    (("schema",), "cohort-record/3"),
]
"""(path, what to put there; None takes it away)."""


def test_every_field_that_is_asked_for_is_in_the_schema() -> None:
    asked = {path for case in cases("records/asked_of_records", "words", "fields") for path in case.values[1]}
    assert asked | {path for row in (*EU_FORM, *NIST_RMF) for path in row.fields} <= {
        facts.path for fields in FIELDS.values() for facts in fields.values()
    }
    every = [facts for fields in FIELDS.values() for facts in fields.values()]
    assert len({facts.label for facts in every}) == len(every)
    assert {facts.audience for facts in (*every, *QUESTIONS)} <= set(AUDIENCES)
    assert len(BY_FIELD) == len(QUESTIONS)
    assert all(bool(question.choices) == (question.kind in ("choice", "several")) for question in QUESTIONS)
    assert [question.field for question in QUESTIONS if question.required] == ["reward.verifiable_or_social"]


@pytest.mark.parametrize("path", ["docs/record-schema.json", "platform/cohort/evidence/record.schema.json"])
def test_the_published_schema_is_current(path: str) -> None:
    published = json.loads((ROOT / path).read_text(encoding="utf-8"))
    assert published == json_schema(), f"run: PYTHONPATH=platform python -m cohort.records.schema > {path}"
    jsonschema.Draft202012Validator.check_schema(published)
    refuse_unknown(published)  # every keyword is one that the offline check knows


@pytest.mark.parametrize(("way", "value"), TAMPERED, ids=[".".join(way) for way, _ in TAMPERED])
def test_what_is_no_record_is_refused(way: tuple[str, ...], value: Any) -> None:
    whole = document()
    assert Document.model_validate(whole)
    here: Any = whole
    for step in way[:-1]:
        here = here[step]
    here.pop(way[-1], None)
    here.update({} if value is None else {way[-1]: value})
    assert not jsonschema.Draft202012Validator(json_schema()).is_valid(whole)
    assert list(faults(whole, json_schema()))
    with pytest.raises(ValueError, match=r"reward\.|sections|schema|verdict"):
        Document.model_validate(whole)


@pytest.mark.parametrize(
    ("device", "watts"),
    [("NVIDIA H100 PCIe", 350), ("NVIDIA H100 80GB HBM3", 700), ("NVIDIA A100-SXM4-80GB", 400), ("cpu", None)],
)
def test_rated_power_is_of_devices_that_are_known(device: str, watts: int | None) -> None:
    assert rated_watts(device) == watts
