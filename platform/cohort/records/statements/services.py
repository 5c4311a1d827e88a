"""Statements of people about a run: read, state, withdraw, override a flag. Statements are only added; the newest of
a field holds."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet

from cohort.accounts.models import User
from cohort.audit.services import who
from cohort.records.models import Audience, Record, Statement
from cohort.records.statements.answers import Unusable, text_checked, value_of, words_of
from cohort.records.statements.questions import BY_FIELD, QUESTIONS, Question, override_field
from cohort.runs.models import Run, RunEvent
from cohort.runs.transitions import run_lock, run_logged
from grpo_core.monitors.recorded import Name


def newest_statements(run: Run) -> dict[str, Statement]:
    """Field → the newest statement, without fields whose newest one was withdrawn."""
    rows = Statement.objects.filter(run=run).select_related("by").order_by("field", "-pk").distinct("field")
    return {statement.field: statement for statement in rows if _states(statement)}


def _states(statement: Statement) -> bool:
    """False for one that only withdraws what was stated before."""
    return bool(statement.text or statement.value is not None)


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
    answered = {(statement.run_id, statement.field) for statement in newest if _states(statement)}
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
        text = text_checked(text)
        if not text and not question.choices:
            raise Unusable("Write something. To withdraw what was stated, use “Withdraw”.")
        value = value_of(question, text=text, chosen=list(chosen))
        reason = text_checked(reason, "The reason")
    except Unusable as error:
        raise ValidationError(str(error)) from None
    return _append(run, actor, field, value, words_of(question, value, text), audience or question.audience, reason)


@transaction.atomic
def statement_withdraw(*, run: Run, actor: User, field: str, reason: str) -> Statement:
    """Withdraw what was stated: an empty statement with its reason. The earlier text stays in the history and in
    records that were sealed with it. Raises ValidationError when nothing is stated, and without a reason."""
    monitors = {override_field(flag) for flag in get_args(Name)}
    current = _newest(run, field) if field in BY_FIELD or field in monitors else None
    if current is None:
        raise ValidationError("Nothing is stated there, so there is nothing to withdraw.")
    return _append(run, actor, field, None, "", current.audience, _reason(reason, "Say why it is withdrawn."))


@transaction.atomic
def flag_override(*, run: Run, actor: User, flag: str, reason: str) -> Statement:
    """State why a raised flag is accepted. The flag stays in the record, with the reason. Raises ValidationError
    for an unknown monitor, and without a reason."""
    if flag not in get_args(Name):
        raise ValidationError(f"{flag[:80]!a} is no monitor; there are {', '.join(get_args(Name))}.")
    text = _reason(reason, "Say why the flag is accepted.")
    return _append(run, actor, override_field(flag), {"flag": flag}, text, Audience.DOWNSTREAM, "")


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
    return newest if newest is not None and _states(newest) else None


def _append(run: Run, actor: User, field: str, value: Any, text: str, audience: str, reason: str) -> Statement:
    if audience not in Audience.values:
        raise ValidationError(f"{audience[:80]!a} is no audience; there are {', '.join(Audience.values)}.")
    run_lock(run=run)
    before = _newest(run, field)
    if before is not None and (before.value, before.text, before.audience) == (value, text, audience):
        raise ValidationError("This is what is stated already; nothing was changed.")
    made = Statement.objects.create(
        run=run, field=field, value=value, text=text, audience=audience, reason=reason, by=actor
    )
    run_logged(
        run=run,
        actor=who(actor),
        kind="statement_made" if text else "statement_withdrawn",
        before=_logged(before),
        after=_logged(made),
        reason=reason,
        data={"field": field, "statement": made.pk},
    )
    return made


def _logged(statement: Statement | None) -> dict[str, Any] | None:
    if statement is None:
        return None
    return {"value": statement.value, "text": statement.text, "audience": statement.audience}
