"""Sealing: what a record says of a run, and that it is said once."""

import json
import re
import zipfile
from collections.abc import Callable
from io import BytesIO
from typing import Any

import jsonschema
import pytest
import rfc8785

from cohort import artifacts
from cohort.accounts.models import User
from cohort.governance.card import write_card
from cohort.governance.facts import collect
from cohort.governance.models import Record
from cohort.governance.schema import Sealed, Section, json_schema
from cohort.governance.services import NotEnded, record_seal
from cohort.governance.tasks import seal
from cohort.paths import ROOT
from cohort.runs.models import Run, RunState
from cohort.runs.services import run_cancel
from tests import sealed_run

pytestmark = pytest.mark.django_db

SEED_FIELDS = {
    # every field that the Governance Record paragraphs ask for, and where it stands
    "base model": "subject.base_model",
    "reference policy": "subject.reference_policy",
    "old-policy snapshot": "subject.old_policy",
    "reward source": "reward.source",
    "verifier code or specification": "reward.verifier",
    "prompt distribution": "data.prompts",
    "sampling temperature": "method.sampling",
    "group size": "method.group_size",
    "reward normalization choice": "method.normalization",
    "clipping settings": "method.clipping",
    "KL settings": "method.kl",
    "loss variant": "method.loss",
    "rejected samples": "rejected.samples",
    "data decontamination checks": "data.decontamination",
    "training budget": "budget.compute",
    "pre- and post-GRPO performance": "behaviour.performance",
    "hallucination": "behaviour.hallucination",
    "refusal calibration": "behaviour.refusal_calibration",
    "jailbreak robustness": "behaviour.jailbreak_robustness",
    "harmful-capability evaluations": "behaviour.harmful_capability",
    "benchmark contamination": "behaviour.benchmark_contamination",
    "multilingual behavior": "behaviour.multilingual",
    "tool-use behavior": "behaviour.tool_use",
    "safety regressions": "behaviour.safety_regressions",
    "reasoning traces hidden, summarized, filtered, or exposed": "handling.trace_policy",
    "used GRPO or related RL": "subject.training_method",
    "what domains supplied rewards": "reward.domain",
    "rule-based or model-based": "reward.rule_or_model",
    "how prompts were selected": "data.selection",
    "reward design known to be brittle": "reward.brittleness",
    "verifiable or social domain": "reward.verifiable_or_social",
    "AI system inventory": "handling.inventory",
    "model or system card": "handling.model_card",
    "audit trail": "handling.audit_trail",
    "data provenance record": "data.provenance",
    "evaluation file": "handling.evaluation_file",
    "change-management process": "handling.change_management",
    "post-market monitoring plan": "handling.monitoring",
    "distinguish GRPO from the full system": "subject.before_grpo",
}
ONLY_A_PERSON = ["reward.domain", "reward.verifiable_or_social", "reward.brittleness", "handling.trace_policy",
                 "handling.inventory", "handling.change_management", "handling.monitoring"]  # fmt: skip
NOT_RUN = ["hallucination", "refusal_calibration", "jailbreak_robustness", "harmful_capability",
           "benchmark_contamination", "multilingual", "safety_regressions"]  # fmt: skip


Launch = Callable[..., Run]


@pytest.fixture
def finished(launch: Launch) -> Run:
    return sealed_run.finished(launch())


def opened(record: Record) -> Sealed:
    return Sealed.model_validate_json(record.document)


def entry(sealed: Sealed, path: str) -> Any:
    section, name = path.split(".")
    return getattr(getattr(sealed.record, section), name)


def card_of(record: Record) -> zipfile.ZipFile:
    return zipfile.ZipFile(BytesIO(b"".join(artifacts.read_chunks(record.card_artifact))))


def test_every_field_of_the_seed_paragraphs_is_there(finished: Run) -> None:
    sealed = opened(record_seal(run=finished))
    for path in SEED_FIELDS.values():
        found = entry(sealed, path)
        assert found.text
        assert found.source
        assert found.evidence


def test_what_only_a_person_can_say_is_not_stated(finished: Run) -> None:
    sealed = opened(record_seal(run=finished))
    for path in ONLY_A_PERSON:
        found = entry(sealed, path)
        assert (found.text, found.source, found.value, found.evidence) == ("not stated", "not stated", None, "none")


def test_what_was_not_run_says_so(finished: Run) -> None:
    sealed = opened(record_seal(run=finished))
    for name in NOT_RUN:
        found = entry(sealed, f"behaviour.{name}")
        assert (found.text, found.source, found.value) == ("not evaluated", "not stated", None)
    assert sealed.record.behaviour.tool_use.source == "not applicable"


def test_measured_values_are_those_of_the_run(finished: Run) -> None:
    sealed = opened(record_seal(run=finished))
    record = sealed.record
    assert record.title == "Two-digit addition"
    assert record.state == "succeeded"
    (comparison,) = record.behaviour.performance.value or []
    assert comparison.before is not None
    assert comparison.after is not None
    assert comparison.change is not None
    assert (comparison.problems, comparison.before.share, comparison.after.share) == (100, 0.3, 0.8)
    # Wilson for 30 and 80 of 100, Newcombe 1998, method 3
    assert comparison.before.interval.low == pytest.approx(0.2189, abs=1e-4)
    assert comparison.before.interval.high == pytest.approx(0.3958, abs=1e-4)
    assert comparison.after.interval.low == pytest.approx(0.7112, abs=1e-4)
    assert comparison.after.interval.high == pytest.approx(0.8666, abs=1e-4)
    change = comparison.change
    assert (change.fixed, change.broken, change.both_right, change.both_wrong) == (52, 2, 28, 18)
    assert change.difference == pytest.approx(0.5)
    assert comparison.verdict == "better"
    assert comparison.margin == 0.05
    assert entry(sealed, "rejected.samples").value == {"left_out": 1, "of": 24}
    assert entry(sealed, "rejected.groups").text.startswith("2 of 6 (33.3 %) groups")
    assert entry(sealed, "data.decontamination").value["shared"] == 1
    assert entry(sealed, "data.decontamination").text == "1 of 2 (50.0 %) held-out prompts are in the training file"
    assert entry(sealed, "data.provenance").source == "stated by alice"
    assert entry(sealed, "reward.course").value == {"first_step": 1, "first": 0.5, "last_step": 3, "last": 0.75}
    # 8 × 1,000 parameters × 900 tokens
    assert entry(sealed, "budget.compute").value["flop_estimate"] == 7_200_000
    assert entry(sealed, "subject.base_model").note == "The weights are those that were registered."
    assert entry(sealed, "subject.before_grpo").source == "stated by the model folder's cold_start.json"
    assert entry(sealed, "method.preset").text.startswith("demo (Cohort): sampling.group_size 4 instead of 8")


def test_weights_that_differ_from_the_registered_ones_are_told(launch: Launch) -> None:
    run = launch()
    told = [
        record.model_copy(update={"model": {**record.model, "weights": {"model.safetensors": "0" * 64}}})
        if record.kind == "manifest"
        else record
        for record in sealed_run.whole(run)
    ]
    sealed = opened(record_seal(run=sealed_run.finished(run, told)))
    assert entry(sealed, "subject.base_model").note == "The weights differ from those registered."


def test_other_protocol_after_is_not_compared(launch: Launch) -> None:
    run = launch()
    told = sealed_run.whole(run, after_protocol={**sealed_run.PROTOCOL, "temperature": 1.0})
    record = record_seal(run=sealed_run.finished(run, told))
    (comparison,) = opened(record).record.behaviour.performance.value or []
    assert comparison.change is None
    assert comparison.verdict == "not comparable"
    assert "problems or protocol differed" in opened(record).record.behaviour.performance.text


def test_nothing_claims_compliance(finished: Run) -> None:
    archive = card_of(record_seal(run=finished))
    for name in ("record.json", "CARD.md", "card.html"):
        assert not re.search(rb"compliant|compliance|certif", archive.read(name), re.IGNORECASE)


def test_sealing_twice_gives_the_same_record(finished: Run) -> None:
    first = record_seal(run=finished)
    assert record_seal(run=finished) == first
    assert Record.objects.count() == 1
    assert [event.kind for event in finished.events.all()].count("sealed") == 1


def test_same_facts_give_the_same_bytes(finished: Run, tmp_path: Any) -> None:
    facts = collect(finished, state="succeeded")
    write_card(facts, tmp_path / "a.zip")
    write_card(facts, tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_failed_run_gets_a_record_that_says_so(launch: Launch) -> None:
    run = launch()
    attempt = sealed_run.claim(run)
    sealed_run.ingest(attempt, sealed_run.whole(run)[:107])
    run = sealed_run.finish(attempt, end="failed", code="trainer_died", message="The trainer was killed by signal 9")
    seal(run.pk)
    run.refresh_from_db()
    assert run.state == RunState.FAILED
    sealed = opened(Record.objects.get(run=run, fence=run.fence))
    assert sealed.record.state == "failed"
    assert "failed after 1 of 3 steps: The trainer was killed by signal 9" in entry(sealed, "subject.outcome").text
    assert entry(sealed, "budget.tokens").text == "not measured"
    (comparison,) = sealed.record.behaviour.performance.value or []
    assert comparison.after is None
    assert comparison.verdict == "evaluated once only"
    assert not any(file.path == "evals/after.jsonl" for file in sealed.files)
    seal(run.pk)
    assert [event.kind for event in run.events.all()].count("sealed") == 1


def test_run_that_failed_before_its_first_record(launch: Launch) -> None:
    run = launch()
    run = sealed_run.finish(sealed_run.claim(run), end="failed", code="model_error", message="no such model folder")
    sealed = opened(record_seal(run=run))
    assert entry(sealed, "subject.training_method").text == "none: the run ended before its first training step"
    assert entry(sealed, "subject.code").text == "not measured"
    assert entry(sealed, "behaviour.performance").value is None
    assert entry(sealed, "behaviour.performance").text == "not evaluated"
    # what the catalog knows stays known
    assert "as registered" in entry(sealed, "subject.base_model").text


def test_cancelled_run(launch: Launch, alice: User) -> None:
    run = launch()
    attempt = sealed_run.claim(run)
    sealed_run.ingest(attempt, sealed_run.whole(run)[:3])
    run_cancel(run=run, actor=alice, reason="wrong dataset")
    run = sealed_run.finish(attempt, end="cancelled", message="stopped")
    seal(run.pk)
    sealed = opened(Record.objects.get(run=run))
    assert sealed.record.state == "cancelled"
    assert entry(sealed, "subject.outcome").text.startswith("cancelled after 0 of 3 steps: ")
    assert entry(sealed, "subject.outcome").text.endswith("wrong dataset")


def test_live_run_is_not_sealed(launch: Launch) -> None:
    run = launch()
    sealed_run.claim(run)
    run.refresh_from_db()
    with pytest.raises(NotEnded, match="is starting"):
        record_seal(run=run)
    assert not Record.objects.exists()


def test_counts_match_the_document(finished: Run) -> None:
    record = record_seal(run=finished)
    document = json.loads(record.document)["record"]
    fields = [f for part in document.values() if isinstance(part, dict) for f in part.values()]
    assert record.fields_total == len(fields)
    assert record.fields_stated == sum(field["source"] != "not stated" for field in fields)
    assert 0 < record.fields_stated < record.fields_total


def test_card_holds_what_the_record_names(finished: Run) -> None:
    record = record_seal(run=finished)
    archive = card_of(record)
    assert sorted(archive.namelist()) == sealed_run.CARD_FILES
    assert archive.read("record.json").decode() == record.document
    items = [json.loads(line) for line in archive.read("evals/after.jsonl").splitlines()]
    assert [item["score"] for item in items] == sealed_run.AFTER
    traces = [json.loads(line) for line in archive.read("traces/steps-000001-000100.jsonl").splitlines()]
    assert [(trace["step"], len(trace["samples"])) for trace in traces] == [(1, 4), (2, 4), (3, 4)]
    assert traces[0]["samples"][1]["completion"] == f"{sealed_run.HOSTILE} 1.1"


def test_hostile_text_is_inert_in_the_reading_copies(launch: Launch) -> None:
    run = launch(name="<script>alert(1)</script> | [x](javascript:y) \u202e")
    run = sealed_run.finish(sealed_run.claim(run), end="failed", code="x", message="<img src=x onerror=alert(1)> | `a`")
    archive = card_of(record_seal(run=run))
    html, markdown = archive.read("card.html").decode(), archive.read("CARD.md").decode()
    assert "<script" not in html
    assert "<img" not in html
    assert html.count("<style>") == 1
    assert not re.search(r"<[a-z][^>]*\s(src|href|on\w+)=", html)
    assert "\u202e" not in html + markdown
    assert "<script" not in markdown.replace("\\<", "")
    assert "](javascript" not in markdown
    # a bar in a cell would open another one
    rows = [line for line in markdown.splitlines() if line.startswith("| How it ended")]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [4]


def test_published_schema_is_current_and_a_record_validates(finished: Run) -> None:
    published = json.loads((ROOT / "docs" / "record-schema.json").read_text(encoding="utf-8"))
    assert published == json_schema(), (
        "run: PYTHONPATH=platform python -m cohort.governance.schema > docs/record-schema.json"
    )
    document = json.loads(record_seal(run=finished).document)
    validator = jsonschema.Draft202012Validator(published)
    validator.check_schema(published)
    validator.validate(document)
    del document["record"]["reward"]["domain"]
    assert not validator.is_valid(document)


def test_every_section_labels_its_fields() -> None:
    for section in Section.__subclasses__():
        assert section.__doc__
        assert all(field.title for field in section.model_fields.values())


def test_document_is_canonical(finished: Run) -> None:
    document = record_seal(run=finished).document
    assert rfc8785.dumps(json.loads(document)) == document.encode()
