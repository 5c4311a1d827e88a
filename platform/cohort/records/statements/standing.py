"""A project's standing answers: what it answers alike for its runs, kept once. Rows are only added; the newest of a
field is in force. A person uses one in a run's form; nothing else brings it into a record."""

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet

from cohort.accounts.models import Project, User
from cohort.audit import services as audit
from cohort.records.models import StandingAnswer
from cohort.records.statements.answers import Checked, Unusable, text_checked
from cohort.records.statements.edits import Edit, checked_edits
from cohort.records.statements.questions import BY_FIELD


def standing_answers(project: Project) -> dict[str, StandingAnswer]:
    """Field → the answer in force."""
    rows = StandingAnswer.objects.filter(project=project).select_related("by").order_by("field", "-pk")
    return {answer.field: answer for answer in rows.distinct("field") if answer.in_force}


@transaction.atomic
def standing_save(*, project: Project, actor: User, edits: Mapping[str, Edit]) -> list[StandingAnswer]:
    """Keep all that a form changed, or nothing where something is refused. Raises ValidationError by field with every
    fault, as `statements_save` does, and for a question that is of each run alone."""
    _lock(project)
    of_runs = {field: ["This is answered for each run."] for field in edits if not BY_FIELD[field].standing}
    if of_runs:
        raise ValidationError(of_runs)
    current = standing_answers(project)
    answers = checked_edits(edits, project=project, actor=actor, current=current, standing={})
    changed = {field: answer for field, answer in answers.items() if _words(current.get(field)) != answer}
    return [_append(project, actor, field, answer, "", current.get(field)) for field, answer in changed.items()]


@transaction.atomic
def standing_withdraw(*, project: Project, actor: User, field: str, reason: str) -> StandingAnswer:
    """Runs that used it keep what was stated of them. Raises ValidationError when there is none, and without a
    reason."""
    _lock(project)
    current = standing_answers(project).get(field)
    if current is None:
        raise ValidationError("There is no such standing answer, so there is nothing to withdraw.")
    try:
        reason = text_checked(reason, "The reason")
    except Unusable as error:
        raise ValidationError(str(error)) from None
    if not reason:
        raise ValidationError("Say why it is withdrawn.")
    return _append(project, actor, field, Checked(None, "", current.audience), reason, current)


def earlier_answers(project: Project) -> QuerySet[StandingAnswer]:
    """All rows, newest first."""
    return StandingAnswer.objects.filter(project=project).order_by("-pk")


def _lock(project: Project) -> None:
    """One change of a project's answers at a time; the rows themselves are only added to."""
    Project.objects.select_for_update().get(pk=project.pk)


def _words(answer: StandingAnswer | None) -> Checked | None:
    return Checked(answer.value, answer.text, answer.audience) if answer is not None else None


def _append(
    project: Project, actor: User, field: str, answer: Checked, reason: str, before: StandingAnswer | None
) -> StandingAnswer:
    made = StandingAnswer.objects.create(project=project, field=field, reason=reason, by=actor, **vars(answer))
    audit.log(
        actor=audit.who(actor),
        kind="standing_answer_kept" if answer.text else "standing_answer_withdrawn",
        subject=f"project:{project.pk}",
        project=project,
        before=_logged(before),
        after=_logged(made),
        reason=reason,
        data={"field": field, "standing_answer": made.pk},
    )
    return made


def _logged(answer: StandingAnswer | None) -> dict[str, Any] | None:
    if answer is None:
        return None
    return {"value": answer.value, "text": answer.text, "audience": answer.audience}
