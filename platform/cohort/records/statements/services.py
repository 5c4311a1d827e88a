"""Statements of people about a run: read, state, withdraw, override a flag. Statements are only added; the newest of
a field holds."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet

from cohort.accounts.models import User
from cohort.audit.services import who
from cohort.records.models import Audience, Record, StandingAnswer, Statement
from cohort.records.statements.answers import Checked, Given, Unusable, checked, text_checked
from cohort.records.statements.edits import Edit, checked_edits
from cohort.records.statements.questions import BY_FIELD, QUESTIONS, Question, override_field
from cohort.records.statements.standing import standing_answers
from cohort.runs.models import Run, RunEvent
from cohort.runs.transitions import run_lock, run_logged
from grpo_core.monitors.recorded import Name


def newest_statements(run: Run) -> dict[str, Statement]:
    """Field → the newest statement, without fields whose newest one was withdrawn."""
    rows = Statement.objects.filter(run=run).select_related("by", "standing__by")
    rows = rows.order_by("field", "-pk").distinct("field")
    return {statement.field: statement for statement in rows if statement.in_force}


@dataclass(frozen=True)
class AnsweredQuestion:
    """A question with its answers."""

    question: Question
    current: Statement | None
    """None where nobody answered, or the answer was withdrawn."""
    earlier: list[int]
    """Ids of earlier answers and withdrawals, newest first."""


def questions_of(run: Run) -> list[AnsweredQuestion]:
    """Every question, in the table's order."""
    newest, ids = newest_statements(run), dict[str, list[int]]()
    for field, pk in Statement.objects.filter(run=run).order_by("-pk").values_list("field", "pk"):
        ids.setdefault(field, []).append(pk)
    rows = []
    for question in QUESTIONS:
        current = newest.get(question.field)
        earlier = [pk for pk in ids.get(question.field, ()) if current is None or pk != current.pk]
        rows.append(AnsweredQuestion(question, current, earlier))
    return rows


def required_unanswered(runs: Collection[int]) -> dict[int, list[Question]]:
    """Run id → the required questions that have no answer in force; runs without such are left out. One query."""
    required = [question for question in QUESTIONS if question.required]
    rows = Statement.objects.filter(run__in=runs, field__in=[question.field for question in required])
    newest = rows.order_by("run_id", "field", "-pk").distinct("run_id", "field")
    answered = {(statement.run_id, statement.field) for statement in newest if statement.in_force}
    missing = {run: [question for question in required if (run, question.field) not in answered] for run in runs}
    return {run: questions for run, questions in missing.items() if questions}


def statements_since(record: Record) -> QuerySet[Statement]:
    """Those that are not in this version of the record, as they were made after it."""
    every = Statement.objects.filter(run=record.run_id)
    sealed = RunEvent.objects.filter(run=record.run_id, kind="sealed", data__seal=record.seal).first()
    if sealed is not None and "statements_through" in sealed.data:
        return every.filter(pk__gt=sealed.data["statements_through"])
    return every.filter(at__gt=record.sealed_at)


@transaction.atomic
def statement_make(
    *,
    run: Run,
    actor: User,
    field: str,
    text: str = "",
    chosen: Sequence[str] = (),
    audience: str = "",
    reason: str = "",
) -> Statement:
    """State what the record cannot measure. `field` is one of the table of questions, `chosen` the picked answers of a
    question with choices, `audience` empty for the field's own.

    Raises ValidationError for a field without a question, an answer that does not fit the question, an empty one,
    text of more than 20,000 characters, and when the same is stated already.
    """
    question = BY_FIELD.get(field)
    if question is None:
        raise ValidationError(f"{field[:80]!a} is no field that a person states.")
    try:
        answer = checked(question, Given.of(question, text=text, chosen=chosen, audience=audience))
        reason = text_checked(reason, "The reason")
    except Unusable as error:
        raise ValidationError(str(error)) from None
    run_lock(run=run)
    if _same(_newest(run, field), answer):
        raise ValidationError("This is what is stated already; nothing was changed.")
    return _append(run, actor, field, answer, reason)


@transaction.atomic
def statements_save(*, run: Run, actor: User, edits: Mapping[str, Edit]) -> list[Statement]:
    """State all that a form changed, each as a statement of its own: all of it or, where something is refused, nothing.
    What is stated already in the same words is left out.

    Raises ValidationError, by field with every fault: an answer that does not fit its question, one that needs another
    role, one that somebody else gave since the form was opened, a standing answer that changed since it was used.
    """
    run_lock(run=run)
    current, standing = newest_statements(run), standing_answers(run.project)
    answers = checked_edits(edits, project=run.project, actor=actor, current=current, standing=standing)
    changed = {field: answer for field, answer in answers.items() if not _same(current.get(field), answer)}
    return [
        _append(run, actor, field, answer, "", standing=standing[field] if edits[field].standing else None)
        for field, answer in changed.items()
    ]


@transaction.atomic
def statement_withdraw(*, run: Run, actor: User, field: str, reason: str) -> Statement:
    """Withdraw what was stated: an empty statement with its reason. The earlier text stays in the history and in
    records that were sealed with it. Raises ValidationError when nothing is stated, and without a reason."""
    monitors = {override_field(flag) for flag in get_args(Name)}
    run_lock(run=run)
    current = _newest(run, field) if field in BY_FIELD or field in monitors else None
    if current is None:
        raise ValidationError("Nothing is stated there, so there is nothing to withdraw.")
    reason = _reason(reason, "Say why it is withdrawn.")
    return _append(run, actor, field, Checked(None, "", current.audience), reason)


@transaction.atomic
def flag_override(*, run: Run, actor: User, flag: str, reason: str) -> Statement:
    """State why a raised flag is accepted. The flag stays in the record, with the reason. Raises ValidationError
    for an unknown monitor, and without a reason."""
    if flag not in get_args(Name):
        raise ValidationError(f"{flag[:80]!a} is no monitor; there are {', '.join(get_args(Name))}.")
    text = _reason(reason, "Say why the flag is accepted.")
    run_lock(run=run)
    answer = Checked({"flag": flag}, text, Audience.DOWNSTREAM)
    if _same(_newest(run, override_field(flag)), answer):
        raise ValidationError("This is what is stated already; nothing was changed.")
    return _append(run, actor, override_field(flag), answer, "")


def _reason(reason: str, missing: str) -> str:
    try:
        reason = text_checked(reason, "The reason")
    except Unusable as error:
        raise ValidationError(str(error)) from None
    if not reason:
        raise ValidationError(missing)
    return reason


def _newest(run: Run, field: str) -> Statement | None:
    newest = Statement.objects.filter(run=run, field=field).order_by("-pk").first()
    return newest if newest is not None and newest.in_force else None


def _same(current: Statement | None, answer: Checked) -> bool:
    return current is not None and Checked(current.value, current.text, current.audience) == answer


def _append(
    run: Run, actor: User, field: str, answer: Checked, reason: str, *, standing: StandingAnswer | None = None
) -> Statement:
    before = _newest(run, field)
    made = Statement.objects.create(run=run, field=field, reason=reason, by=actor, standing=standing, **vars(answer))
    run_logged(
        run=run,
        actor=who(actor),
        kind="statement_made" if answer.text else "statement_withdrawn",
        before=_logged(before),
        after=_logged(made),
        reason=reason,
        data={"field": field, "statement": made.pk} | ({"standing_answer": standing.pk} if standing else {}),
    )
    return made


def _logged(statement: Statement | None) -> dict[str, Any] | None:
    if statement is None:
        return None
    return {"value": statement.value, "text": statement.text, "audience": statement.audience}
