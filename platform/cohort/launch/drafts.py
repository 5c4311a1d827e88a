"""Drafts of the run form: saved while a person types, kept until they are launched or discarded.

A draft is what somebody typed, checked or not; nothing here reads a setting in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from django.db import transaction
from django.db.models import QuerySet

from cohort.accounts.models import Project, User
from cohort.base.storable import storable_json
from cohort.runs.models import LaunchDraft

KEPT = 10
"""Newest drafts of a person in a project; an older one makes room."""
MAX_CHARS = 200_000
"""Of all texts of a draft together."""


@dataclass(frozen=True)
class Saved:
    draft: LaunchDraft
    replaced: bool
    """Another window had saved it since this one was opened; this one's texts are the draft now."""


def drafts_of(project: Project, user: User) -> QuerySet[LaunchDraft]:
    return LaunchDraft.objects.filter(project=project, user=user)


@transaction.atomic
def draft_save(
    *, project: Project, user: User, form_token: str, texts: Mapping[str, str], window: str, since: int
) -> Saved | None:
    """Save what the form holds; None when it is more than `MAX_CHARS`. `window` is the page that sends it and `since`
    the draft's revision when that page was opened; whoever saves last wins."""
    if sum(map(len, texts.values())) > MAX_CHARS:
        return None
    kept = storable_json(dict(texts))
    draft, _ = LaunchDraft.objects.select_for_update().get_or_create(
        project=project, user=user, form_token=form_token, defaults={"texts": kept, "window": window}
    )
    replaced = draft.window != window and draft.revision != since
    draft.texts, draft.window, draft.revision = kept, window, draft.revision + 1
    draft.save()
    older = drafts_of(project, user).values_list("pk", flat=True)[KEPT:]
    LaunchDraft.objects.filter(pk__in=list(older)).delete()
    return Saved(draft, replaced)


def draft_discard(*, project: Project, user: User, form_token: str) -> None:
    drafts_of(project, user).filter(form_token=form_token).delete()
