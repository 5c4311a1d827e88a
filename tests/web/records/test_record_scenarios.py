"""What the record of a run says, for every way in which a run comes to its end: tests/golden/records/."""

import json
import zipfile
from collections.abc import Callable
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from django.db.models import F

from cohort.audit import services as audit
from cohort.evidence.record import AUDIENCES, record_root, redact, seal_of
from cohort.evidence.schema_check import faults
from cohort.records.build import build_record
from cohort.records.cards import data_files, markdown, readme
from cohort.records.cards.issue import Contents, read_contents
from cohort.records.cards.pack import Pack
from cohort.records.cards.reading import Reading
from cohort.records.facts import TracesInCard, collect
from cohort.records.fields import COMMON_FIELDS
from cohort.records.schema import Document, json_schema
from cohort.records.services import _STATES, record_seal
from cohort.records.statements.questions import BY_FIELD
from cohort.runs.models import Run
from tests.conftest import GOLDEN
from tests.factories import sealed_run
from tests.tables import cases
from tests.web.records import records as kept
from tests.web.records.attempts import resumed_on_another_node
from tests.web.records.conftest import World
from tests.web.records.records import TRACES, stripped
from tests.web.records.scenarios import ANSWERS, SCENARIOS, finished, settings

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_pdf")]
Golden = Callable[[str, Any], None]
Launch = Callable[..., Run]

SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
NUMBERS = [case.values for case in cases("records/record_numbers", "scenario", "field", "at", "value")]
SAME = {"refused_after_two_steps_with_totals_of_nothing": "refused_after_two_steps"}
"""Scenarios of which the records must be the same."""
CARDS = ("finished", "suites", "resumed_on_another_node", "failed_before_its_first_record")
"""Of which the model card is kept too."""
SEALED = (
    *("suites", "resumed_on_another_node", "retried", "retried_from_the_start", "extended", "refused_after_two_steps"),
    *("cancelled_before_its_second_attempt", "no_traces", "stated"),
)
"""Which are sealed and checked as `cohort verify` does."""


def made(run: Run, folder: Path, **bounds: int) -> tuple[Contents, dict[str, bytes]]:
    """What a card of the run is made from, without making one, and its sealed files and traces. Every attempt has held
    its node for 100 seconds."""
    run.attempts.update(claimed_at=F("ended_at") - timedelta(seconds=100))
    related = ("project", "base_model", "dataset", "eval_dataset", "verifier_version__verifier", "cloned_from")
    run = Run.objects.select_related(*related).get(pk=run.pk)
    audit.integrate()  # as before every seal
    with Pack(folder / "pack") as pack:
        contents = read_contents(collect(run, state=_STATES[run.state]), pack, **bounds)
        zipped = pack.zip("files.zip", [*contents.sealed, *contents.traces]).read_bytes()
    with zipfile.ZipFile(BytesIO(zipped)) as archive:
        return contents, {name: archive.read(name) for name in archive.namelist()}


def facts_of(document: dict[str, Any]) -> dict[str, Any]:
    """By section.field, with the head and the sealed files."""
    sections = stripped(document["sections"])
    fields = {f"{section}.{name}": one for section, part in sections.items() for name, one in part.items()}
    head = {name: one for name, one in document["head"].items() if name not in ("run", "sealed_at")}
    return {"head": head, "files": {one["path"]: one["audience"] for one in document["files"]}, **fields}


def differing(document: dict[str, Any]) -> dict[str, Any]:
    """What is other than in the record of a run that simply finished."""
    usual = json.loads((GOLDEN / "records" / "finished.json").read_text(encoding="utf-8"))
    unusual = {}
    for path, facts in facts_of(document).items():
        if path == "files" and facts != usual[path]:
            unusual[path] = facts
        elif facts != usual[path]:
            unusual[path] = {name: one for name, one in facts.items() if one != usual[path][name]}
    return unusual


def fits_the_schema(document: dict[str, Any]) -> None:
    """For every audience; and every field is filled, or says that it is not and why."""
    for audience in AUDIENCES:
        whole = redact(document, audience)
        VALIDATOR.validate(whole)
        assert not list(faults(whole, SCHEMA))
        assert (record_root(whole), seal_of(whole)) == (document["record_root"], document["seal"])
    read = Document.model_validate(document)
    for path in [facts.path for fields in COMMON_FIELDS.values() for facts in fields.values()]:
        entry = read.entry(path)
        empty = entry.source in ("not stated", "not applicable")
        assert (entry.evidence == "none") == empty, path
        assert entry.text, path
        assert entry.note or not empty, path


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_record_says_what_happened(world: World, golden: Golden, tmp_path: Path, name: str) -> None:
    run = SCENARIOS[name](world)
    contents, _ = made(run, tmp_path)
    document = json.loads(json.dumps(contents.document))
    fits_the_schema(document)
    for scenario, field, path, value in NUMBERS:
        if scenario == name:
            actual = Document.model_validate(document).entry(field).value
            for step in path.split("."):
                actual = actual[int(step) if step.isdigit() else step]
            assert actual == (pytest.approx(value, abs=1e-4) if isinstance(value, float) else value), (field, path)
    golden(f"records/{SAME.get(name, name)}.json", facts_of(document) if name == "finished" else differing(document))
    if name in CARDS:
        text = markdown.card_markdown(Reading(document, contents.series, contents.weights)).decode()
        golden(f"records/{name}.CARD.md", stripped(text))
    if name in SEALED:
        assert kept.accepted(record_seal(run=run).card(), tmp_path)


def test_the_sheets_say_where_or_that_nothing_is_stated(world: World, golden: Golden, tmp_path: Path) -> None:
    assert set(ANSWERS) == set(BY_FIELD), "every question has an answer in this scenario"
    document = made(SCENARIOS["stated"](world), tmp_path)[0].document
    reading = Reading(json.loads(json.dumps(redact(dict(document), "downstream"))))
    for path in data_files.SHEETS:
        golden(f"records/stated.{path.removeprefix('sheets/')}", stripped(data_files.sheet(reading, path).decode()))
    golden("records/stated.README.txt", stripped(readme.readme(reading, ["record.json", "evals/a", "x"]).decode()))


def test_files_are_of_the_attempts_whose_work_stands(world: World, tmp_path: Path) -> None:
    _, files = made(resumed_on_another_node(world), tmp_path)
    rewards = [(row["step"], row["metrics"]["reward"]) for row in kept.lines(files["metrics.jsonl"])]
    assert rewards == [(1, 0.5), (2, 0.6), (3, 0.75)]
    assert [row["step"] for row in kept.lines(files[TRACES])] == [1, 2, 3]
    run = SCENARIOS["refused_after_two_steps"](world)
    _, files = made(run, tmp_path)
    assert "outcome.json" not in files
    assert json.loads(files["manifest.json"])["model"]["weights"] == sealed_run.manifest(run).model["weights"]


def test_the_same_facts_and_salts_give_the_same_document(world: World) -> None:
    run = finished(world)
    audit.integrate()
    facts = collect(run, state="succeeded")
    given: dict[str, Any] = {"files": [], "traces": TracesInCard(groups=3, samples=12, cut_at=None)}
    first, second = (build_record(facts, **given, salt=lambda: "5" * 32) for _ in range(2))
    assert first == second
    other = build_record(facts, **given)
    assert other["record_root"] != first["record_root"], "salts are drawn anew"
    salts = [field["salt"] for part in other["sections"].values() for field in part.values()]
    assert len(set(salts)) == len(salts)


# ---------------------------------------------------------------------- traces


def traces_of(files: dict[str, bytes]) -> dict[str, int]:
    """Groups by file."""
    return {name: content.count(b"\n") for name, content in files.items() if name.startswith("traces/")}


def test_traces_carry_what_decided_about_a_group_and_a_hundred_steps_share_a_file(
    launch: Launch, tmp_path: Path
) -> None:
    run = launch(settings=settings(optim={"steps": 101}, algorithm={"dynamic_sampling": {"enabled": True}}))
    reported: list[Any] = []
    for record in sealed_run.whole(run):
        if getattr(record, "phase", "") == "evaluating_after":
            reported += [more for number in range(4, 102) for more in sealed_run.step(number, 0.8)]
        reported.append(record)
    index = next(index for index, record in enumerate(reported) if record.kind == "group")
    samples = reported[index].samples
    shaped = samples[0].model_copy(update={"shaped_reward": -0.25, "mask_cause": "truncated"})
    discarded = {"discarded": "all_right", "sampled_at": 7, "samples": (shaped, *samples[1:])}
    reported[index] = reported[index].model_copy(update=discarded)
    _, files = made(sealed_run.finished(run, reported), tmp_path)
    assert traces_of(files) == {TRACES: 100, "traces/steps-000101-000200.jsonl": 1}
    first, second, *_ = kept.lines(files[TRACES])
    assert (first["discarded"], first["sampled_at"]) == ("all_right", 7)
    assert (first["samples"][0]["shaped_reward"], first["samples"][0]["mask_cause"]) == (-0.25, "truncated")
    assert (second["discarded"], second["sampled_at"], second["samples"][0]["shaped_reward"]) == (None, None, None)


def test_traces_are_cut_by_bytes_between_groups(world: World, tmp_path: Path) -> None:
    run = finished(world)
    first, second, _ = made(run, tmp_path)[1][TRACES].splitlines(keepends=True)
    _, parts = made(run, tmp_path, max_trace_file_bytes=len(first) + 1)
    assert traces_of(parts) == {TRACES.replace(".jsonl", "-2.jsonl"): 1, TRACES: 2}
    cut, files = made(run, tmp_path, max_trace_bytes=len(first) + len(second))
    entry = cut.document["sections"]["rejected"]["traces"]
    value = {"groups": 3, "samples": 12, "groups_in_card": 2, "samples_in_card": 8, "not_in_card_from": 3}
    assert entry["value"] == value
    assert entry["evidence"] == "reported"
    assert traces_of(files) == {TRACES: 2}
    none, files = made(run, tmp_path, max_trace_bytes=0)
    assert none.document["sections"]["rejected"]["traces"]["value"]["groups_in_card"] == 0
    assert traces_of(files) == {}
