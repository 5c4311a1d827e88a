"""What people state: who, what, when; the newest holds, what was said stays, and it lands in the record."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from cohort.accounts.models import User
from cohort.audit.models import AuditEntry
from cohort.governance.models import Statement
from cohort.governance.services import record_seal
from cohort.governance.statements.answers import MAX_CHARS
from cohort.governance.statements.questions import BY_FIELD
from cohort.governance.statements.selectors import asked, newest_statements
from cohort.governance.statements.services import flag_override, statement_make, statement_withdraw
from cohort.runs.models import Run
from tests import sealed_run
from tests.web.governance.record_reading import document, entry

pytestmark = pytest.mark.django_db(transaction=True)
Launch = Callable[..., Run]

ANSWERS: dict[str, dict[str, Any]] = {
    "reward.verifiable_or_social": {"chosen": ["both"], "text": "sums are checked, tone is liked"},
    "reward.domain": {"chosen": ["format", "mathematics"], "text": "sums"},
    "reward.brittleness": {"text": "words for digits"},
    "reward.disclosure": {"chosen": ["withheld"], "text": "it would teach the shortcut"},
    "data.choice": {"text": "small enough to read"},
    "data.provenance": {"text": "https://data.example/sheet"},
    "subject.pipeline": {
        "text": "pretraining: 1 T tokens\nsft: chats\ngrpo: this run\ndistillation: into a smaller one"
    },
    "method.rationale": {"text": "as in the demo"},
    "budget.base_share": {"text": "7.2e9, by its maker's report"},
    "behaviour.tool_use": {"chosen": ["not_relevant"], "text": "it is offered no tools"},
    "behaviour.safety_regressions": {"text": "none was tested; not released"},
    "handling.trace_policy": {"chosen": ["filtered"]},
    "handling.inventory": {"text": "https://inventory.example/7"},
    "handling.system_card": {"text": "there is none"},
    "handling.change_management": {"text": "two signatures"},
    "handling.monitoring": {"text": "monthly, by the owner"},
}


@pytest.fixture
def run(launch: Launch) -> Run:
    return launch()


def test_every_question_lands_in_its_field(run: Run, alice: User) -> None:
    assert set(ANSWERS) == set(BY_FIELD)
    for field, answer in ANSWERS.items():
        statement_make(run=run, actor=alice, field=field, **answer)
    record = record_seal(run=sealed_run.finished(run))
    for field in ANSWERS:
        if field != "behaviour.safety_regressions":  # stands beside what the tests say, below
            found = entry(record, field)
            assert (found.source, found.evidence) == ("stated by alice", "stated"), field
    assert entry(record, "reward.verifiable_or_social").text == (
        "both: parts of the reward are of each kind. sums are checked, tone is liked"
    )
    assert entry(record, "reward.domain").value == {"choices": ["mathematics", "format"], "words": "sums"}
    assert entry(record, "reward.domain").text == "mathematics, output format and structure. sums"
    assert entry(record, "handling.inventory").value == {"link": "https://inventory.example/7"}
    assert entry(record, "handling.system_card").value is None
    assert "none was tested; not released" in entry(record, "behaviour.safety_regressions").note
    assert entry(record, "behaviour.tool_use").text.startswith("it does not matter. it is offered no tools")
    assert entry(record, "data.provenance").note.startswith("The uploader wrote: made for the tests")
    # 8 × 1,000 parameters × 900 tokens of 7.2e9
    share = entry(record, "budget.base_share")
    assert share.value == {"base_flop": 7.2e9, "run_flop_estimate": 7_200_000.0, "share": 0.001}
    assert share.text == "base model 7.2e9 FLOP; this run's estimate is 0.1 % of it"
    assert "alice wrote: 7.2e9, by its maker's report" in share.note
    stages: Any = entry(record, "subject.pipeline").value
    assert [(one["kind"], one["known_by"]) for one in stages] == [
        ("pretraining", "stated by alice"),
        ("sft", "stated by alice"),
        ("grpo", "measured"),
        ("distillation", "stated by alice"),
    ]
    assert stages[2]["what"] == "this run: GRPO, 3 steps"


def test_withholding_the_specification_takes_it_off_the_public_card(run: Run, alice: User) -> None:
    statement_make(run=run, actor=alice, field="reward.disclosure", **ANSWERS["reward.disclosure"])
    record = record_seal(run=sealed_run.finished(run))
    assert entry(record, "reward.verifier").audience == "downstream"
    why = entry(record, "reward.disclosure")
    assert (why.audience, why.text.endswith("it would teach the shortcut")) == ("public", True)


def test_the_author_decides_who_sees_it(run: Run, alice: User) -> None:
    statement_make(run=run, actor=alice, field="reward.brittleness", text="secret", audience="internal")
    assert entry(record_seal(run=sealed_run.finished(run)), "reward.brittleness").audience == "internal"


def test_the_newest_holds_and_what_was_said_stays(run: Run, alice: User, rita: User) -> None:
    statement_make(run=run, actor=alice, field="method.rationale", text="first")
    statement_make(run=run, actor=rita, field="method.rationale", text="second")
    assert newest_statements(run)["method.rationale"].text == "second"
    (one,) = [one for one in asked(run) if one.question.field == "method.rationale"]
    assert one.holds is not None
    assert (one.holds.by, [before.text for before in one.before]) == (rita, ["first"])
    statement_withdraw(run=run, actor=alice, field="method.rationale", reason="it was not so")
    assert "method.rationale" not in newest_statements(run)
    (one,) = [one for one in asked(run) if one.question.field == "method.rationale"]
    assert (one.holds, [before.text for before in one.before]) == (None, ["", "second", "first"])
    assert one.before[0].reason == "it was not so"
    assert entry(record_seal(run=sealed_run.finished(run)), "method.rationale").text == "not stated"


def test_every_word_is_in_the_audit_log(run: Run, alice: User) -> None:
    statement_make(run=run, actor=alice, field="method.rationale", text="first")
    statement_make(run=run, actor=alice, field="method.rationale", text="second", reason="clearer")
    statement_withdraw(run=run, actor=alice, field="method.rationale", reason="wrong")
    rows = AuditEntry.objects.filter(subject=f"run:{run.pk}", kind__startswith="statement_").order_by("pk")
    told = [(row.kind, row.actor, json.loads(bytes(row.body))) for row in rows]
    assert [kind for kind, _, _ in told] == ["statement_made", "statement_made", "statement_withdrawn"]
    assert {actor for _, actor, _ in told} == {"user:alice"}
    second = told[1][2]
    assert (second["before"]["text"], second["after"]["text"], second["reason"]) == ("first", "second", "clearer")
    assert told[2][2]["reason"] == "wrong"
    assert told[0][2]["data"]["field"] == "method.rationale"


@pytest.mark.parametrize(
    ("field", "answer", "told"),
    [
        ("method.loss", {"text": "x"}, "is no field that a person states"),
        ("method.rationale", {"text": " \n "}, "Write something"),
        ("method.rationale", {"text": "x" * (MAX_CHARS + 1)}, "20,001 characters long; 20,000 at most"),
        ("method.rationale", {"text": "a\x00b"}, "NUL character"),
        ("method.rationale", {"text": "x", "audience": "everyone"}, "'everyone' is no audience"),
        ("handling.trace_policy", {"chosen": ["shown"]}, "'shown' is none of the choices"),
        ("handling.trace_policy", {"chosen": []}, "Choose one of the answers"),
        ("handling.trace_policy", {"chosen": ["hidden", "exposed"]}, "not several"),
        ("reward.domain", {"chosen": []}, "one answer or more"),
        ("budget.base_share", {"text": "a lot"}, "Begin with a number above 0"),
        ("budget.base_share", {"text": "-1e3"}, "Begin with a number above 0"),
        ("budget.base_share", {"text": "1e999"}, "Begin with a number above 0"),
        ("subject.pipeline", {"text": "pretraining: a\nmagic: b"}, "Line 2: begin with one of pretraining"),
        ("subject.pipeline", {"text": "pretraining:"}, "Line 1: say after the colon"),
    ],
)
def test_what_cannot_be_taken_is_refused_with_the_fix(
    run: Run, alice: User, field: str, answer: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValidationError, match=told):
        statement_make(run=run, actor=alice, field=field, **answer)
    assert not Statement.objects.exists()
    assert not AuditEntry.objects.filter(kind="statement_made").exists()


def test_saying_the_same_again_changes_nothing(run: Run, alice: User) -> None:
    statement_make(run=run, actor=alice, field="method.rationale", text="once")
    with pytest.raises(ValidationError, match="is what is stated already"):
        statement_make(run=run, actor=alice, field="method.rationale", text=" once ")
    assert Statement.objects.count() == 1
    statement_make(run=run, actor=alice, field="method.rationale", text="once", audience="public")
    assert Statement.objects.count() == 2, "another audience is another statement"


def test_taking_back_needs_something_and_a_reason(run: Run, alice: User) -> None:
    for field in ("method.rationale", "no.such", "a\0b", "oversight.overrides:a\0b"):
        with pytest.raises(ValidationError, match="Nothing is stated there"):
            statement_withdraw(run=run, actor=alice, field=field, reason="x")
    statement_make(run=run, actor=alice, field="method.rationale", text="once")
    with pytest.raises(ValidationError, match="Say why"):
        statement_withdraw(run=run, actor=alice, field="method.rationale", reason=" ")


def test_statements_cannot_be_changed_or_deleted(run: Run, alice: User) -> None:
    made = statement_make(run=run, actor=alice, field="method.rationale", text="once")
    for change in (
        lambda: Statement.objects.filter(pk=made.pk).update(text="other"),
        lambda: Statement.objects.filter(pk=made.pk).delete(),
    ):
        with pytest.raises(IntegrityError, match="is only added to"), transaction.atomic():
            change()


def test_a_flag_stays_when_it_is_overridden(launch: Launch, alice: User) -> None:
    run = launch(settings={**sealed_run.SETTINGS, "optim": {"steps": 10}})
    falls = [2.0] + [1.0] * 8 + [0.1]
    told = sealed_run.whole(run)
    found = [one for one in told if one.kind not in ("step", "commitments", "group")]
    at = next(place for place, one in enumerate(found) if getattr(one, "phase", "") == "evaluating_after")
    steps = []
    for number, entropy in enumerate(falls, start=1):
        first, *rest = sealed_run.step(number, 0.5)
        steps += [first.model_copy(update={"metrics": {"reward": 0.5, "entropy": entropy}}), *rest]
    flag_override(run=run, actor=alice, flag="entropy_collapse", reason="expected at this length")
    record = record_seal(run=sealed_run.finished(run, [*found[:at], *steps, *found[at:]]))
    flags: Any = entry(record, "oversight.flags").value
    (fell,) = [one for one in flags if one["raised"]]
    assert (fell["monitor"], fell["overridden"], fell["threshold"]) == ("entropy_collapse", True, 0.2)
    assert fell["figure"] == pytest.approx(0.05)
    assert entry(record, "oversight.flags").text.startswith("1 of ")
    (override,) = entry(record, "oversight.overrides").value or []  # type: ignore[misc]
    assert (override["by"], override["why"]) == ("alice", "expected at this length")  # type: ignore[index, call-overload]
    assert entry(record, "oversight.overrides").source == "stated by alice"


def test_override_needs_a_monitor_and_a_reason(run: Run, alice: User) -> None:
    with pytest.raises(ValidationError, match="is no monitor"):
        flag_override(run=run, actor=alice, flag="luck", reason="x")
    with pytest.raises(ValidationError, match="Say why"):
        flag_override(run=run, actor=alice, flag="kl_spike", reason="")


def test_what_is_stated_after_sealing_is_in_the_next_version_alone(run: Run, alice: User) -> None:
    first = record_seal(run=sealed_run.finished(run))
    statement_make(run=run, actor=alice, field="method.rationale", text="later")
    assert entry(first, "method.rationale").text == "not stated"
    second = record_seal(run=run, reason="stated", actor=alice)
    assert (second.version, second.supersedes) == (2, first)
    assert entry(second, "method.rationale").text == "later"
    (before,) = entry(second, "subject.earlier_records").value or []  # type: ignore[misc]
    assert (before["version"], before["seal"]) == (1, first.seal)  # type: ignore[index, call-overload]
    assert document(first).seal == first.seal
