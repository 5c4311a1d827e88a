"""What people mark a run with so that they find it again: tags, a note, and the archive. None of it changes the run."""

import re
from collections.abc import Callable, Collection, Iterable

from django.db import transaction
from django.db.models.functions import Now

from cohort.accounts.models import User
from cohort.audit import services as audit
from cohort.base.storable import storable
from cohort.runs.models import Run, RunState
from cohort.runs.services import NotPossible, run_cancel
from cohort.runs.transitions import ENDED, IllegalTransition, run_lock, run_logged

MOST_TAGS = 20
TAG_CHARACTERS = 40
NOTE_CHARACTERS = 4000
MOST_AT_ONCE = 200
"""Runs that one action takes."""

_TAG = re.compile(r"[^\W_][\w.-]*")
_BETWEEN = re.compile(r"[\s,]+")


def tags_of(text: str) -> list[str]:
    """The tags that a person typed, with spaces or commas between them: small letters, each once. Raises NotPossible
    for a word that can be none."""
    words = [word.removeprefix("#").casefold() for word in _BETWEEN.split(text.strip()) if word]
    for word in words:
        if len(word) > TAG_CHARACTERS:
            raise NotPossible(
                f"a tag has at most {TAG_CHARACTERS} characters; {word[:20]}… has {len(word)}", code="tag_long"
            )
        if not _TAG.fullmatch(word):
            raise NotPossible(
                f"{word!r} can be no tag: one begins with a letter or a digit and has only those, hyphens, dots and "
                "underscores",
                code="bad_tag",
            )
    return sorted(set(words))


@transaction.atomic
def run_tags_change(*, run: Run, actor: User, add: Collection[str] = (), remove: Collection[str] = ()) -> bool:
    """Tags as `tags_of` gives them. Returns whether anything changed. Raises NotPossible for more than MOST_TAGS."""
    run_lock(run=run)
    before = list(run.tags)
    after = sorted((set(before) | set(add)) - set(remove))
    if after == before:
        return False
    if len(after) > MOST_TAGS:
        raise NotPossible(f"a run has at most {MOST_TAGS} tags; it would have {len(after)}", code="too_many_tags")
    run.tags = after
    run.save(update_fields=["tags"])
    run_logged(run=run, actor=audit.who(actor), kind="run_tagged", before={"tags": before}, after={"tags": after})
    return True


@transaction.atomic
def run_note_set(*, run: Run, actor: User, note: str) -> bool:
    """Returns whether it changed. Raises NotPossible for one that is too long."""
    note = storable(note.replace("\r\n", "\n").strip())
    if len(note) > NOTE_CHARACTERS:
        raise NotPossible(
            f"a note has at most {NOTE_CHARACTERS:,} characters; this one has {len(note):,}", code="note_long"
        )
    run_lock(run=run)
    if run.note == note:
        return False
    before, run.note = run.note, note
    run.save(update_fields=["note"])
    run_logged(run=run, actor=audit.who(actor), kind="run_noted", before={"note": before}, after={"note": note})
    return True


@transaction.atomic
def run_archive(*, run: Run, actor: User, archived: bool) -> bool:
    """Leave the run out of the list, or show it again. Returns whether it changed. Raises NotPossible for a run that
    waits or is on a worker: nobody would see what it takes."""
    run_lock(run=run)
    if (run.archived_at is not None) == archived:
        return False
    if archived and run.state not in ENDED | {RunState.DRAFT}:
        state = RunState(run.state).label.lower()
        raise NotPossible(f"it is {state}; archive it once it has ended, or cancel it first", code="not_ended")
    Run.objects.filter(pk=run.pk).update(archived_at=Now() if archived else None)
    run.refresh_from_db(fields=["archived_at"])
    run_logged(
        run=run,
        actor=audit.who(actor),
        kind="run_archived" if archived else "run_unarchived",
        after={"archived": archived},
    )
    return True


# ---------------------------------------------------------------------- many at once

Outcome = tuple[int, list[Run], list[tuple[Run, str]]]
"""(how many were changed, those that were so already, those that could not be with the reason)."""


def runs_cancel(*, runs: Iterable[Run], actor: User) -> Outcome:
    """Each in a transaction of its own, as all that follow: what one refuses keeps no other back."""

    def cancel(run: Run) -> bool:
        if run.state in ENDED:
            raise NotPossible("it has ended", code="already_ended")
        requested = run.desired
        run_cancel(run=run, actor=actor)
        return bool(run.state == RunState.CANCELLED or run.desired != requested)

    return _each(runs, cancel)


def runs_archive(*, runs: Iterable[Run], actor: User, archived: bool) -> Outcome:
    return _each(runs, lambda run: run_archive(run=run, actor=actor, archived=archived))


def runs_tag(*, runs: Iterable[Run], actor: User, add: Collection[str] = (), remove: Collection[str] = ()) -> Outcome:
    return _each(runs, lambda run: run_tags_change(run=run, actor=actor, add=add, remove=remove))


def _each(runs: Iterable[Run], change: Callable[[Run], bool]) -> Outcome:
    done, unchanged, refused = 0, [], []
    for run in runs:
        try:
            if change(run):
                done += 1
            else:
                unchanged.append(run)
        except (NotPossible, IllegalTransition) as error:
            refused.append((run, str(error).removesuffix(".").replace(f"run {run.pk} is", "it is", 1)))
    return done, unchanged, refused
