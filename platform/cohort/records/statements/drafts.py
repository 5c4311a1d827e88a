"""Drafts of answers: saved while a person types, kept until they are saved as answers or discarded. As the run form's
drafts (`launch/drafts.py`), but one for each question, so that two windows with different questions do not meet.

A draft is what somebody typed, checked or not.
"""

from dataclasses import dataclass

from django.db import transaction
from django.db.models import QuerySet

from cohort.accounts.models import Project, User
from cohort.base.storable import storable, storable_json
from cohort.records.models import StatementDraft
from cohort.records.statements.answers import Given
from cohort.records.statements.edits import Edit
from cohort.records.statements.questions import BY_FIELD, Question
from cohort.runs.models import Run

MAX_CHARS = 200_000
"""Of a draft's text."""


@dataclass(frozen=True)
class Saved:
    draft: StatementDraft
    replaced: Given | None
    """What another window had saved since this one was opened; this one's text is the draft now."""


def drafts_of(*, project: Project, run: Run | None, user: User) -> QuerySet[StatementDraft]:
    """A person's, of a run or, without one, of the project's standing answers."""
    return StatementDraft.objects.filter(project=project, run=run, user=user).select_related("standing__by")


def given_of(draft: StatementDraft) -> Given:
    question: Question = BY_FIELD[draft.field]
    return Given.of(question, text=draft.text, chosen=draft.chosen, audience=draft.audience)


@transaction.atomic
def draft_save(
    *, project: Project, run: Run | None, user: User, field: str, edit: Edit, window: str, revision: int
) -> Saved | None:
    """Save what the form holds for a question; None when the text is longer than `MAX_CHARS`. `window` is the page that
    sends it and `revision` the draft's when that page was opened; whoever saves last wins, and learns what it
    replaced."""
    given = edit.given
    if len(given.text) > MAX_CHARS:
        return None
    draft, made = StatementDraft.objects.select_for_update().get_or_create(
        project=project, run=run, user=user, field=field, defaults={"audience": storable(given.audience)[:80]}
    )
    meanwhile = not made and draft.window != window and draft.revision != revision
    replaced = given_of(draft) if meanwhile and given_of(draft) != given else None
    draft.text, draft.chosen, draft.audience = storable(given.text), storable_json(list(given.chosen)), given.audience
    draft.audience = storable(given.audience)[:80]
    draft.since, draft.standing_id = edit.since, edit.standing or None
    draft.window, draft.revision = window, draft.revision + 1
    draft.save()
    return Saved(draft, replaced)


def drafts_discard(*, project: Project, run: Run | None, user: User, fields: list[str]) -> None:
    drafts_of(project=project, run=run, user=user).filter(field__in=fields).delete()
