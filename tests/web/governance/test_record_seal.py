"""Sealing: what a record says of a run, and that it is said once."""

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import rfc8785

from cohort.accounts.models import User
from cohort.governance.build import build_record
from cohort.governance.facts import TracesInCard, collect
from cohort.governance.models import Record
from cohort.governance.parts import FileEntry
from cohort.governance.services import NotEnded, record_seal
from cohort.governance.tasks import seal
from cohort.runs.models import Run, RunState
from cohort.runs.services import run_cancel
from tests import sealed_run
from tests.web.governance.record_reading import card, document, entry, lines

pytestmark = pytest.mark.django_db(transaction=True)

ONLY_A_PERSON = ["reward.domain", "reward.verifiable_or_social", "reward.brittleness", "handling.trace_policy",
                 "handling.inventory", "handling.system_card", "handling.change_management",
                 "handling.monitoring", "data.choice", "method.rationale"]  # fmt: skip
NOT_RUN = ["hallucination", "refusal_calibration", "jailbreak_robustness", "harmful_capability",
           "benchmark_contamination", "multilingual", "tool_use", "format", "safety_regressions",
           "imported"]  # fmt: skip


Launch = Callable[..., Run]


@pytest.fixture
def finished(launch: Launch) -> Run:
    return sealed_run.finished(launch())


def test_what_only_a_person_can_say_is_not_stated(finished: Run) -> None:
    sealed = record_seal(run=finished)
    for path in ONLY_A_PERSON:
        found = entry(sealed, path)
        assert (found.text, found.source, found.value, found.evidence) == ("not stated", "not stated", None, "none")


def test_what_was_not_run_says_so(finished: Run) -> None:
    sealed = record_seal(run=finished)
    for name in NOT_RUN:
        found = entry(sealed, f"behaviour.{name}")
        assert (found.text, found.source, found.value) == ("not evaluated", "not stated", None)


def test_measured_values_are_those_of_the_run(finished: Run) -> None:
    sealed = record_seal(run=finished)
    read = document(sealed)
    assert (read.head.title, read.head.state) == ("Two-digit addition", "succeeded")
    assert (read.head.run, read.head.end, read.head.version) == (finished.pk, 1, 1)
    (comparison,) = read.comparisons
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
    assert entry(sealed, "subject.pipeline").source == "stated by the model folder's cold_start.json"
    assert entry(sealed, "method.preset").text.startswith("demo (Cohort): sampling.group_size 4 instead of 8")


def test_weights_that_differ_from_the_registered_ones_are_told(launch: Launch) -> None:
    run = launch()
    told = [
        record.model_copy(update={"model": {**record.model, "weights": {"model.safetensors": "0" * 64}}})
        if record.kind == "manifest"
        else record
        for record in sealed_run.whole(run)
    ]
    sealed = record_seal(run=sealed_run.finished(run, told))
    assert entry(sealed, "subject.base_model").note == "The weights differ from those registered."


def test_other_protocol_after_is_not_compared(launch: Launch) -> None:
    run = launch()
    told = sealed_run.whole(run, after_protocol={**sealed_run.PROTOCOL, "temperature": 1.0})
    record = record_seal(run=sealed_run.finished(run, told))
    (comparison,) = document(record).comparisons
    assert comparison.change is None
    assert comparison.verdict == "not comparable"
    assert "problems or protocol differed" in entry(record, "behaviour.performance").text


def test_nothing_claims_compliance(finished: Run) -> None:
    archive = card(record_seal(run=finished))
    for name in ("record.json", "CARD.md", "card.html"):
        assert not re.search(rb"compliant|compliance|certif", archive.read(name), re.IGNORECASE)


def test_sealing_twice_gives_the_same_record(finished: Run) -> None:
    first = record_seal(run=finished)
    assert record_seal(run=finished) == first
    assert Record.objects.count() == 1
    assert [event.kind for event in finished.events.all()].count("sealed") == 1


def test_the_same_facts_and_salts_give_the_same_document(finished: Run) -> None:
    facts = collect(finished, state="succeeded")
    file = FileEntry(path="metrics.jsonl", sha256="1" * 64, size=3, audience="downstream")
    given: dict[str, Any] = {"files": [file], "traces": TracesInCard(groups=3, samples=12, cut_at=None)}
    first, second = (build_record(facts, **given, salt=lambda: "5" * 32) for _ in range(2))
    assert first == second
    other = build_record(facts, **given)
    assert other["record_root"] != first["record_root"], "salts are drawn anew"
    salts = [field["salt"] for part in other["sections"].values() for field in part.values()]
    assert len(set(salts)) == len(salts)


def test_failed_run_gets_a_record_that_says_so(launch: Launch) -> None:
    run = launch()
    attempt = sealed_run.claim(run)
    sealed_run.ingest(attempt, sealed_run.whole(run)[:108])
    run = sealed_run.finish(attempt, end="failed", code="trainer_died", message="The trainer was killed by signal 9")
    seal(run.pk)
    run.refresh_from_db()
    assert run.state == RunState.FAILED
    sealed = Record.objects.get(run=run, fence=run.fence)
    assert document(sealed).head.state == "failed"
    assert "failed after 1 of 3 steps: The trainer was killed by signal 9" in entry(sealed, "subject.outcome").text
    assert entry(sealed, "budget.tokens").text == "not measured"
    (comparison,) = document(sealed).comparisons
    assert comparison.after is None
    assert comparison.verdict == "evaluated once only"
    assert not any(file.path == "evals/after.jsonl" for file in document(sealed).files)
    seal(run.pk)
    assert [event.kind for event in run.events.all()].count("sealed") == 1


def test_run_that_failed_before_its_first_record(launch: Launch) -> None:
    run = launch()
    run = sealed_run.finish(sealed_run.claim(run), end="failed", code="model_error", message="no such model folder")
    sealed = record_seal(run=run)
    assert entry(sealed, "subject.training_method").text == "none: the run ended before its first training step"
    assert entry(sealed, "environment.code").text == "not measured"
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
    sealed = Record.objects.get(run=run)
    assert document(sealed).head.state == "cancelled"
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
    fields = [field for part in json.loads(record.document)["sections"].values() for field in part.values()]
    assert record.fields_total == len(fields)
    assert record.fields_stated == sum(field["source"] != "not stated" for field in fields)
    assert 0 < record.fields_stated < record.fields_total


def test_card_holds_what_the_record_names(finished: Run) -> None:
    record = record_seal(run=finished)
    archive = card(record)
    assert sorted(archive.namelist()) == sealed_run.CARD_FILES
    assert archive.read("record.json").decode() == record.document
    assert [item["score"] for item in lines(archive, "evals/after.jsonl")] == sealed_run.AFTER
    traces = lines(archive, "traces/steps-000001-000100.jsonl")
    assert [(trace["step"], len(trace["samples"])) for trace in traces] == [(1, 4), (2, 4), (3, 4)]
    assert traces[0]["samples"][1]["completion"] == f"{sealed_run.HOSTILE} 1.1"
    for file in document(record).files:
        content = archive.read(file.path)
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file.size, file.sha256)


def test_hostile_text_is_inert_in_the_reading_copies(launch: Launch) -> None:
    run = launch(name="<script>alert(1)</script> | [x](javascript:y) \u202e")
    run = sealed_run.finish(sealed_run.claim(run), end="failed", code="x", message="<img src=x onerror=alert(1)> | `a`")
    archive = card(record_seal(run=run))
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


def test_document_is_canonical(finished: Run) -> None:
    document = record_seal(run=finished).document
    assert rfc8785.dumps(json.loads(document)) == document.encode()
