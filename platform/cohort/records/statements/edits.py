"""Changed answers of a form, checked together: all of them are right, or every fault is named."""

from collections.abc import Mapping
from dataclasses import dataclass

from django.core.exceptions import ValidationError

from cohort.accounts.models import Membership, Project, Role, User, reaches
from cohort.records.models import StandingAnswer, Stated
from cohort.records.statements.answers import Checked, Given, Unusable, checked
from cohort.records.statements.questions import BY_FIELD, Question


@dataclass(frozen=True)
class Edit:
    given: Given
    since: int = 0
    """Id of the answer in force when the form was opened; 0 for none."""
    standing: int = 0
    """Id of the standing answer that the form was filled with and that it still repeats; 0 for a person's own words."""


def may_answer(role: str, question: Question) -> bool:
    return bool(role) and reaches(role, Role(question.answered_by))


def checked_edits(
    edits: Mapping[str, Edit],
    *,
    project: Project,
    actor: User,
    current: Mapping[str, Stated],
    standing: Mapping[str, StandingAnswer],
) -> dict[str, Checked]:
    """By field of a question. `current` are the answers in force, `standing` those of the project. Raises
    ValidationError by field."""
    role = Membership.objects.filter(project=project, user=actor).values_list("role", flat=True).first() or ""
    answers: dict[str, Checked] = {}
    faults: dict[str, list[str]] = {}
    for field, edit in edits.items():
        question, holds, kept = BY_FIELD[field], current.get(field), standing.get(field)
        if not may_answer(role, question):
            faults[field] = [f"This needs the role {question.answered_by}; yours is {role or 'none'}."]
            continue
        try:
            answer = answers[field] = checked(question, edit.given)
        except Unusable as error:
            faults[field] = [str(error)]
            continue
        if (holds.pk if holds else 0) != edit.since and not (holds and _words(holds) == answer):
            now = f"{holds.by.username} answered: “{holds.text}”" if holds else "the answer was withdrawn"
            faults[field] = [f"Since this form was opened {now}. Save again to put yours in its place."]
        elif edit.standing and (kept is None or kept.pk != edit.standing or _words(kept) != answer):
            faults[field] = [
                "The project's standing answer is no longer the one that was used here. Use the new one, or save "
                "again to state this as your own words."
            ]
    if faults:
        raise ValidationError(faults)
    return answers


def _words(stated: Stated) -> Checked:
    return Checked(stated.value, stated.text, stated.audience)
