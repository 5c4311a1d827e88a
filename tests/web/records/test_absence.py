"""What a record counts of what it leaves out: zero where there is none, each kind by hand, and nothing where it is not
known."""

from collections.abc import Callable
from typing import Any

import pytest

from cohort.records.models import Record
from cohort.records.services import record_seal
from cohort.records.statements.services import statement_make, statement_withdraw
from cohort.records.traces.redaction import samples_redact
from cohort.review.models import Sample
from cohort.review.pairs import pair_vote, pairs_of
from cohort.review.services import current_groups, sample_judge, sample_undo
from cohort.runs.models import Run
from tests.factories.lab import evaluated, probed
from tests.factories.sealed_run import TOTALS, finished
from tests.factories.suites import add_suite
from tests.web.records.attempts import retried
from tests.web.records.conftest import World
from tests.web.records.records import entry

pytestmark = pytest.mark.django_db
COUNTED = (
    "rejected.not_stored",
    "rejected.redacted",
    "behaviour.not_chosen",
    "oversight.judgements_hidden",
    "handling.statements_withdrawn",
    "reward.probes",
)


def value_of(record: Record, path: str) -> dict[str, Any]:
    value = entry(record, path).value
    assert isinstance(value, dict)
    return value


def test_zero_is_said_as_zero_and_to_anyone(launch: Callable[..., Run]) -> None:
    record = record_seal(run=finished(launch()))
    for path in COUNTED:
        field = entry(record, path)
        assert (field.audience, field.source) == ("public", "measured"), path
    assert entry(record, "rejected.redacted").text.startswith("0 of ")
    assert entry(record, "oversight.judgements_hidden").text.startswith("0 judgements: 0 replaced")
    assert entry(record, "handling.statements_withdrawn").text == "0 withdrawn, 0 replaced, of 0 made"
    assert entry(record, "behaviour.not_chosen").text.startswith("0 evaluations")
    stored = Sample.objects.filter(group__run=record.run).count()
    assert value_of(record, "rejected.not_stored") == {
        "not_stored": TOTALS["samples"] - stored,
        "of": TOTALS["samples"],
        "stored": stored,
    }


def test_what_people_took_back_is_counted(world: World, launch: Callable[..., Run]) -> None:
    run = finished(launch())
    samples = list(Sample.objects.filter(group__in=current_groups(run)).order_by("pk"))
    for verdict in ("right", "wrong"):
        sample_judge(sample=samples[0], actor=world.rita, verdict=verdict)
    sample_judge(sample=samples[1], actor=world.rita, verdict="right")
    sample_undo(sample=samples[1], actor=world.rita)
    sample_judge(sample=samples[2], actor=world.rita, note="odd")
    left, right = next(pair for group in current_groups(run) for pair in pairs_of(group))
    pair_vote(group=left.group, actor=world.rita, left=left.index, right=right.index, choice="left")
    samples_redact(run=run, samples=samples[3:5], actor=world.alice, reason="personal")
    for text in ("small", "smaller"):
        statement_make(run=run, actor=world.alice, field="data.choice", text=text)
    statement_make(run=run, actor=world.alice, field="method.rationale", text="as ever")
    statement_withdraw(run=run, actor=world.alice, field="method.rationale", reason="it was not so")
    record = record_seal(run=run)
    hidden = {"hidden": 3, "revised": 1, "withdrawn": 1, "superseded": 0, "pair_votes": 1, "counted": 1}
    assert value_of(record, "oversight.judgements_hidden") == hidden
    assert value_of(record, "rejected.redacted")["deleted"] == 2
    statements = {"made": 3, "in_force": 1, "withdrawn": 1, "replaced": 1}
    assert value_of(record, "handling.statements_withdrawn") == statements


def test_evaluations_and_probes_that_the_record_does_not_use_are_counted(
    world: World, launch: Callable[..., Run]
) -> None:
    run = launch()
    probed(run.verifier_version, world.alice)
    version = add_suite(run.project, world.alice)
    evaluated(run.base_model, world.alice, version, [0.0] * version.items)
    record = record_seal(run=finished(run))
    assert value_of(record, "behaviour.not_chosen")["of_base_model"] == 1
    probes = value_of(record, "reward.probes")
    assert (probes["total"], probes["overridden"]) == (0, 1), "the probe came after the launch, which was overridden"
    again = record_seal(run=finished(launch()))
    assert sum(value_of(again, "reward.probes")["verdicts"].values()) == 1


def test_superseded_work_is_counted_as_such(world: World) -> None:
    record = record_seal(run=retried(world))
    evaluations = value_of(record, "behaviour.not_chosen")
    assert evaluations["superseded"] == value_of(record, "budget.superseded")["evaluations"]


def test_without_totals_what_was_not_stored_is_not_measured(launch: Callable[..., Run]) -> None:
    record = record_seal(run=finished(launch(), []))
    assert entry(record, "rejected.not_stored").text == "not measured"
