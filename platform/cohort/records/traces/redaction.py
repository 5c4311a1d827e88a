"""Deleting the text of a sample, for privacy, because it is harmful or because its time is over, without breaking a
proof.

Text and salt go, and so does the row of the step's token arrays, whose token ids are the text; the leaf stays in the
run's tree. Without the salts nobody can find out what was hashed, not even by guessing. Cards that held the text are
issued again without it, under the same seal, and the earlier zips are deleted. Copies that somebody has downloaded, and
the folder of the run on its node, are out of the platform's reach. Cards of the first schema keep their texts, and so
do notes of reviewers, which are only added to; the pages say so.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Exists, Max, OuterRef, QuerySet
from django.db.models.functions import Now

from cohort.accounts.models import Project, User
from cohort.audit import services as audit
from cohort.base import artifacts
from cohort.records import services
from cohort.records.models import Card, Record
from cohort.records.traces.tree import redaction_begins
from cohort.review.models import Sample
from cohort.review.token_files import token_rows_delete
from cohort.review.word_index import words_delete
from cohort.runs.models import Run
from cohort.runs.transitions import ENDED, run_logged

MOST_CHARACTERS = 10_000
"""Of a reason."""

log = logging.getLogger(__name__)


@transaction.atomic
def samples_redact(*, run: Run, samples: Sequence[Sample], actor: User | None, reason: str) -> int:
    """Delete text and salt of these samples of the run; those deleted before stay as they are. Returns how many were
    deleted now. `actor` is None for the platform itself. Raises ValidationError keyed by `reason` or `samples`.

    Cards are issued again by `cards_renew`, outside the transaction.
    """
    reason = reason.strip()
    if not reason:
        raise ValidationError({"reason": "A reason is needed: it is kept in the audit log and on the record."})
    if len(reason) > MOST_CHARACTERS:
        raise ValidationError(
            {"reason": f"The reason has {len(reason):,} characters; at most {MOST_CHARACTERS:,} can be kept."}
        )
    redaction_begins(run.pk)
    ids = [sample.pk for sample in samples]
    chosen = Sample.objects.filter(pk__in=ids, group__run=run).select_related("group")
    rows = list(chosen.select_for_update(of=["self"]).order_by("pk"))
    if not rows or len(rows) != len(set(ids)):
        raise ValidationError({"samples": "Choose samples of this run."})
    deleted = [row for row in rows if row.redacted_at is None]
    for row in deleted:
        row.completion, row.salt, row.redacted_at = "", "", Now()
        row.components = {name: _without_words(score) for name, score in row.components.items()}
    Sample.objects.bulk_update(deleted, ["completion", "salt", "redacted_at", "components"], batch_size=1000)
    if deleted:
        words_delete(run_id=run.pk, samples=[row.pk for row in deleted])
        token_rows_delete(deleted)
        run_logged(
            run=run,
            actor=audit.who(actor),
            kind="samples_redacted",
            reason=reason,
            data={"samples": [[row.group.step, row.group.index, row.index] for row in deleted]},
        )
        log.info("%d samples of run %s redacted", len(deleted), run.pk)
    return len(deleted)


def _without_words(score: dict[str, Any]) -> dict[str, Any]:
    """A component's score without what it quotes of the completion; of an error its class stays."""
    error = score.get("error")
    return {**score, "detail": "", "error": error.partition(":")[0] if error else error}


def runs_to_renew() -> list[int]:
    """Runs that have a card which still holds a text that was deleted since, or whose earlier zips are still there."""
    deleted = Sample.objects.exclude(redacted_at=None).values("group__run").annotate(last=Max("redacted_at"))
    due = []
    for run_id, last in deleted.order_by("group__run").values_list("group__run", "last"):
        records = _renewable(run_id)
        if any(record.card().issued_at <= last or _earlier_zips(record) for record in records):
            due.append(run_id)
    return due


def _renewable(run_id: int) -> QuerySet[Record]:
    return Record.objects.filter(run=run_id).defer("document").order_by("pk")


def _earlier_zips(record: Record) -> list[Card]:
    """Cards superseded by another issue, whose zip is still stored."""
    newer = Card.objects.filter(record=record, audience=OuterRef("audience"), issue__gt=OuterRef("issue"))
    return [card for card in record.cards.filter(Exists(newer)) if artifacts.exists(card.artifact)]


def cards_renew(*, run: Run) -> int:
    """Issue again, without the deleted texts, every card of the run that was issued before, and delete the zips that
    it replaces. May run twice. Returns how many records had cards issued."""
    last = Sample.objects.filter(group__run=run).aggregate(last=Max("redacted_at"))["last"]
    if last is None:
        return 0
    renewed = 0
    for record in _renewable(run.pk):
        if record.card().issued_at <= last:
            why = f"Samples were redacted; the audit log says why, under run {run.pk}."
            services.record_reissue(record=record, reason=why)
            renewed += 1
        for card in _earlier_zips(record):
            with suppress(FileNotFoundError):  # the hourly task deleted it at the same time
                artifacts.remove(card.artifact)
    return renewed


# How long a project keeps the texts of its samples: their deletion when that time is over.
#
# Off unless an admin sets it. Counted from the end of the run; a run that continues keeps its texts.


AT_ONCE = 5_000
"""Samples deleted in one transaction."""
LONGEST_DAYS = 36_500


@transaction.atomic
def retention_set(*, project: Project, actor: User, days: int | None) -> None:
    """Keep the texts of samples so many days after the end of their run; None keeps them. Raises ValidationError."""
    if days is not None and not 1 <= days <= LONGEST_DAYS:
        raise ValidationError({"days": f"Give 1 to {LONGEST_DAYS:,} days, or leave it empty to keep all texts."})
    locked = Project.objects.select_for_update().get(pk=project.pk)
    before, project.traces_keep_days = locked.traces_keep_days, days
    project.save(update_fields=["traces_keep_days"])
    audit.log(
        actor=f"user:{actor.username}",
        kind="retention_set",
        subject=f"project:{project.slug}",
        project=project,
        before={"traces_keep_days": before},
        after={"traces_keep_days": days},
    )


def traces_expire() -> int:
    """Delete every text whose time is over. Returns how many samples. May run twice, and continues where it was cut
    off. The caller of `runs_to_renew` issues the cards again."""
    total = 0
    for project in Project.objects.exclude(traces_keep_days=None):
        days = project.traces_keep_days
        reason = f"Kept for {days} days after the run's end, as the project has set."
        old = Run.objects.filter(project=project, state__in=ENDED, ended_at__lt=Now() - timedelta(days=days or 0))
        texts = Sample.objects.filter(group__run=OuterRef("pk"), redacted_at=None)
        for run in old.filter(Exists(texts)):
            # A large run takes a while, and somebody may let it continue meanwhile.
            while old.filter(pk=run.pk).exists():
                batch = list(Sample.objects.filter(group__run=run, redacted_at=None).order_by("pk")[:AT_ONCE])
                if not batch:
                    break
                total += samples_redact(run=run, samples=batch, actor=None, reason=reason)
    return total
