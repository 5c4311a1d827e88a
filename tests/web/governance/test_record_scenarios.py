"""What the record of a run says, for every way in which a run comes to its end: tests/golden/records/."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from django.db.models import F

from cohort.accounts.models import User
from cohort.evidence.record import AUDIENCES, record_root, redact, seal_of
from cohort.evidence.schema_check import faults
from cohort.governance.cards import markdown, readme, sheets
from cohort.governance.cards.first import contents_of
from cohort.governance.cards.making import Contents
from cohort.governance.cards.pack import Pack
from cohort.governance.cards.reading import Reading
from cohort.governance.facts import TracesInCard, collect
from cohort.governance.fields import labels
from cohort.governance.build import build_record
from cohort.governance.models import Record
from cohort.governance.schema import Document, json_schema
from cohort.governance.services import _STATES, record_seal
from cohort.runs.models import Run
from grpo_core import records
from tests import sealed_run
from tests.cases import cases
from tests.conftest import GOLDEN
from tests.web.governance import records as kept
from tests.web.governance.scenarios import SCENARIOS, World, changed, finished, resumed_on_another_node, settings

pytestmark = pytest.mark.django_db
Golden = Callable[[str, Any], None]
Launch = Callable[..., Run]

VALIDATOR = jsonschema.Draft202012Validator(json_schema())
NUMBERS = [case.values for case in cases("governance/record_numbers", "scenario", "field", "at", "value")]
SAME = {"refused_after_two_steps_with_totals_of_nothing": "refused_after_two_steps"}
"""Scenarios of which the records must be the same."""
CARDS = ("finished", "suites", "resumed_on_another_node", "failed_before_its_first_record")
"""Of which the model card is kept too."""
SEALED = (
    *("suites", "resumed_on_another_node", "retried", "retried_from_the_start", "extended", "refused_after_two_steps"),
    *("cancelled_before_its_second_attempt", "no_traces", "stated"),
)
"""Which are sealed and checked as `cohort verify` does."""
VARIES = (
    (r"\d{4}-\d\d-\d\dT[\d:.]+(\+00:00|Z)", "TIME"),
    (r"\d{1,2} [A-Z][a-z]{2} \d{4}, \d\d:\d\d UTC", "TIME"),
    (r"\b(?!([0-9a-f])\1{63})[0-9a-f]{64}\b", "SHA256"),
    (r"sha256 [0-9a-f]{12}…", "sha256 …"),
    (r"\b[0-9a-f]{4}( [0-9a-f]{4}){3}\b", "SHORT"),
    (r"\b(run|job|card-run-) ?\d+", r"\1 N"),
)
IDS = ("id", "checkpoint")


@pytest.fixture
def world(launch: Launch, alice: User, oscar: User) -> World:
    return World(launch, alice, oscar)


def made(run: Run, folder: Path) -> Contents:
    """What a card of the run is made from, without making one. Every attempt has held its node for 100 seconds."""
    run.attempts.update(claimed_at=F("ended_at") - timedelta(seconds=100))
    related = ("project", "base_model", "dataset", "eval_dataset", "verifier_version__verifier", "cloned_from")
    run = Run.objects.select_related(*related).get(pk=run.pk)
    with Pack(folder / "pack") as pack:
        return contents_of(collect(run, state=_STATES[run.state]), pack)


def stripped(value: Any) -> Any:
    """Without what varies: salts, ids, times, and digests of what varies. Of a probe's classes only the first whole."""
    if isinstance(value, dict):
        return {name: _stripped(name, one) for name, one in value.items() if name != "salt"}
    if isinstance(value, list):
        return [stripped(one) for one in value]
    if isinstance(value, str):
        for pattern, word in VARIES:
            value = re.sub(pattern, word, value)
    return value


def _stripped(name: str, value: Any) -> Any:
    if name in IDS:
        return value if value is None else "N"
    if name in ("earlier_runs", "settings_from") and value:
        return stripped([{**one, "run": "N"} for one in (value if isinstance(value, list) else [value])])
    if name == "classes" and isinstance(value, list):
        return [stripped(value[0]), *(one["name"] for one in value[1:])]
    return stripped(value)


def facts_of(document: dict[str, Any]) -> dict[str, Any]:
    """By section.field, with the head and the sealed files."""
    sections = stripped(document["sections"])
    fields = {f"{section}.{name}": one for section, part in sections.items() for name, one in part.items()}
    head = {name: one for name, one in document["head"].items() if name not in ("run", "sealed_at")}
    return {"head": head, "files": {one["path"]: one["audience"] for one in document["files"]}, **fields}


def differing(document: dict[str, Any]) -> dict[str, Any]:
    """What is other than in the record of a run that simply finished."""
    usual = json.loads((GOLDEN / "records" / "finished.json").read_text(encoding="utf-8"))
    found = {}
    for path, facts in facts_of(document).items():
        if path == "files" and facts != usual[path]:
            found[path] = facts
        elif facts != usual[path]:
            found[path] = {name: one for name, one in facts.items() if one != usual[path][name]}
    return found


def fits_the_schema(document: dict[str, Any]) -> None:
    """For every audience; and every field is filled, or says that it is not and why."""
    for audience in AUDIENCES:
        whole = redact(document, audience)
        VALIDATOR.validate(whole)
        assert not list(faults(whole, json_schema()))
        assert (record_root(whole), seal_of(whole)) == (document["record_root"], document["seal"])
    read = Document.model_validate(document)
    for path in labels():
        entry = read.entry(path)
        empty = entry.source in ("not stated", "not applicable")
        assert (entry.evidence == "none") == empty, path
        assert entry.text and (entry.note or not empty), path


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_record_says_what_happened(world: World, golden: Golden, tmp_path: Path, name: str) -> None:
    run = SCENARIOS[name](world)
    contents = made(run, tmp_path)
    document = json.loads(json.dumps(contents.document))
    fits_the_schema(document)
    for _, field, at, value in (one for one in NUMBERS if one[0] == name):
        found = Document.model_validate(document).entry(field).value
        for step in at.split("."):
            found = found[int(step) if step.isdigit() else step]
        assert found == (pytest.approx(value, abs=1e-4) if isinstance(value, float) else value), (field, at)
    golden(f"records/{SAME.get(name, name)}.json", facts_of(document) if name == "finished" else differing(document))
    if name in CARDS:
        text = markdown.card_markdown(Reading(document, contents.series, contents.weights)).decode()
        golden(f"records/{name}.CARD.md", stripped(text))
    if name in SEALED:
        assert kept.accepted(record_seal(run=run).card(), tmp_path)
