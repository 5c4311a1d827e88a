"""Review queues: making one from a run's samples, giving each person the next sample, and taking their judgements."""

import random
from collections.abc import Sequence
from typing import Any

from django.core.exceptions import PermissionDenied, ValidationError
from django.db import connection, transaction
from django.db.models.functions import Now

from cohort.accounts.models import Membership, Role, User, reaches
from cohort.audit import services as audit
from cohort.base.storable import storable
from cohort.review.filters import SampleFilter
from cohort.review.informative import most_informative
from cohort.review.models import (
    Annotation,
    QueueOrder,
    ReviewClaim,
    ReviewItem,
    ReviewQueue,
)
from cohort.review.services import InQueue, sample_judge, sample_undo
from cohort.review.waiting import JUDGED, blind_queues
from cohort.runs.models import Run

MOST_ITEMS = 2000
MOST_CHARACTERS = 120
"""Of a name."""
CLAIMED = 600
"""For so many seconds a sample that is shown to one person is given to nobody else."""


@transaction.atomic
def queue_create(
    *,
    run: Run,
    actor: User,
    name: str,
    samples: SampleFilter,
    size: int,
    order: str = QueueOrder.INFORMATIVE,
    seed: int = 0,
    blind: bool = True,
    reviewers: int = 1,
    assignees: Sequence[User] = (),
) -> ReviewQueue:
    """A queue of the first `size` samples that fit, by the order; they stay, whatever comes later.

    Raises ValidationError keyed by field.
    """
    faults: dict[str, str] = {}
    if order not in QueueOrder.values:
        faults["order"] = f"{order!r} is no order; there are {', '.join(QueueOrder.values)}."
    if not 1 <= size <= MOST_ITEMS:
        faults["size"] = f"A queue has 1 to {MOST_ITEMS:,} samples, not {size:,}."
    if not 0 <= seed < 2**31:
        faults["seed"] = "The seed is a whole number from 0 to 2,147,483,647."
    if reviewers not in (1, 2):
        faults["reviewers"] = "1 or 2 people judge a sample."
    members = Membership.objects.filter(project=run.project, user__in=assignees, user__is_active=True)
    fitting = {row.user_id for row in members if reaches(row.role, Role.REVIEWER)}
    if unfit := [user.username for user in assignees if user.pk not in fitting]:
        faults["assignees"] = f"{', '.join(unfit)}: only members who are reviewers or more can judge."
    elif 0 < len(fitting) < reviewers:
        faults["assignees"] = "Two people are to judge each sample, so assign two or more, or none."
    if faults:
        raise ValidationError(faults)
    chosen = _chosen(run, samples, size, order, seed)
    if not chosen:
        raise ValidationError({"size": f"No sample of the run fits: {samples.words}."})
    queue = ReviewQueue(run=run, query=samples.query, order=order, blind=blind, reviewers=reviewers)
    queue.seed = seed if order == QueueOrder.RANDOM else None
    return _queue_add(queue, actor, name, chosen, assignees)


def _chosen(run: Run, samples: SampleFilter, size: int, order: str, seed: int) -> list[int]:
    if order == QueueOrder.INFORMATIVE:
        return most_informative(run, samples, size)
    if order == QueueOrder.FILTER:
        return list(samples.ordered(run).filter(redacted_at=None).values_list("pk", flat=True)[:size])
    every = list(samples.samples(run).filter(redacted_at=None).order_by("pk").values_list("pk", flat=True))
    return random.Random(seed).sample(every, min(size, len(every)))


def _queue_add(
    queue: ReviewQueue, actor: User, name: str, chosen: Sequence[int], assignees: Sequence[User]
) -> ReviewQueue:
    name = storable(name).strip()
    if not 1 <= len(name) <= MOST_CHARACTERS:
        raise ValidationError({"name": f"A name has 1 to {MOST_CHARACTERS} characters."})
    queue.project, queue.created_by, queue.name = queue.run.project, actor, name
    queue.save()
    queue.assignees.set(assignees)
    ReviewItem.objects.bulk_create(
        ReviewItem(queue=queue, sample_id=pk, number=number) for number, pk in enumerate(chosen, start=1)
    )
    audit.log(
        actor=audit.who(actor),
        kind="review_queue_made",
        subject=f"review_queue:{queue.pk}",
        project=queue.project,
        after={"name": name, "run": queue.run_id, "query": queue.query, "samples": len(chosen)}
        | {"order": queue.order, "blind": queue.blind, "reviewers": queue.reviewers}
        | {"assignees": sorted(user.username for user in assignees)},
    )
    return queue


@transaction.atomic
def disagreements_queue(*, queue: ReviewQueue, actor: User, differing: Sequence[ReviewItem]) -> ReviewQueue:
    """A queue of the samples on which the two who judged differ (`queue_figures.differing`), in the queue's
    order; each is judged once, by anyone, who sees all. Raises ValidationError where they differ on none."""
    if not differing:
        raise ValidationError("The reviewers differ on no sample of this queue.")
    made = ReviewQueue(run=queue.run, query=queue.query, source=queue, blind=False, reviewers=1)
    name = f"{queue.name[: MOST_CHARACTERS - 15]}: disagreements"
    return _queue_add(made, actor, name, [item.sample_id for item in differing], [])


def require_reviewer(queue: ReviewQueue, actor: User) -> None:
    """Raises PermissionDenied for people whom the queue is not assigned to."""
    people = {user.pk for user in queue.assignees.all()}
    if people and actor.pk not in people:
        raise PermissionDenied(f"The queue {queue.name} is assigned to other people.")


_NEXT = f"""
    WITH newest AS ({JUDGED}), taken AS (
        SELECT sample_id, count(DISTINCT by_id) AS people, bool_or(judged AND by_id = %(actor)s) AS mine FROM (
            SELECT sample_id, by_id, true AS judged FROM newest WHERE verdict <> ''
            UNION ALL
            SELECT item.sample_id, claim.by_id, false FROM review_reviewclaim AS claim
            JOIN review_reviewitem AS item ON item.id = claim.item_id
            WHERE item.queue_id = %(queue)s AND claim.by_id <> %(actor)s AND claim.expires_at > statement_timestamp()
        ) AS each GROUP BY sample_id
    )
    SELECT item.id FROM review_reviewitem AS item JOIN review_sample AS sample ON sample.id = item.sample_id
    LEFT JOIN taken ON taken.sample_id = item.sample_id
    LEFT JOIN review_reviewclaim AS own
        ON own.item_id = item.id AND own.by_id = %(actor)s AND own.expires_at > statement_timestamp()
    WHERE item.queue_id = %(queue)s AND sample.redacted_at IS NULL
        AND coalesce(taken.people, 0) < %(reviewers)s AND NOT coalesce(taken.mine, false)
    ORDER BY own.id IS NOT NULL DESC, item.number LIMIT 1
"""


@transaction.atomic
def item_next(*, queue: ReviewQueue, actor: User) -> ReviewItem | None:
    """The next sample that the person is to judge, claimed for a short time: the one that they have open, else the
    first that nobody else is judging. None where there is none now."""
    require_reviewer(queue, actor)
    _locked(queue)
    named = {"queue": queue.pk, "queues": [queue.pk], "actor": actor.pk, "reviewers": queue.reviewers}
    item = next(iter(ReviewItem.objects.raw(_NEXT, named)), None)
    if item is not None:
        item.queue = queue
        item_show(item=item, actor=actor)
    return item


def _locked(queue: ReviewQueue) -> None:
    """Two people get one sample after the other, never the same one; held until the transaction ends, no longer."""
    ReviewQueue.objects.select_for_update(no_key=True).get(pk=queue.pk)


_SHOW = """
    INSERT INTO review_reviewclaim AS claim (item_id, by_id, shown_at, expires_at)
    VALUES (%(item)s, %(actor)s, statement_timestamp(), statement_timestamp() + make_interval(secs => %(claimed)s))
    ON CONFLICT (item_id, by_id) DO UPDATE SET expires_at = excluded.expires_at,
        shown_at = CASE WHEN claim.expires_at > statement_timestamp() THEN claim.shown_at ELSE excluded.shown_at END
"""


def item_show(*, item: ReviewItem, actor: User) -> None:
    """The sample is before the person from now on, or still is."""
    with connection.cursor() as cursor:
        cursor.execute(_SHOW, {"item": item.pk, "actor": actor.pk, "claimed": CLAIMED})


_CLAIM = """
    SELECT extract(epoch FROM statement_timestamp() - shown_at)::float, expires_at > statement_timestamp()
    FROM review_reviewclaim WHERE item_id = %s AND by_id = %s
"""


@transaction.atomic
def item_judge(*, item: ReviewItem, actor: User, verdict: str | None = None, **changes: Any) -> Annotation | None:
    """As `services.sample_judge`, in the item's queue. Raises ValidationError too where the sample has all the
    judgements that it is to have."""
    given = _given(item, actor, timed=verdict is not None)
    row = sample_judge(sample=item.sample, actor=actor, verdict=verdict, given=given, **changes)
    _judged(item, actor, row)
    return row


@transaction.atomic
def item_undo(*, item: ReviewItem, actor: User) -> Annotation | None:
    """As `services.sample_undo`, in the item's queue."""
    row = sample_undo(sample=item.sample, actor=actor, given=_given(item, actor, timed=False))
    _judged(item, actor, row)
    return row


def _given(item: ReviewItem, actor: User, *, timed: bool) -> InQueue:
    queue = item.queue
    require_reviewer(queue, actor)
    _locked(queue)
    others = judges_of(item) - {actor.pk}
    if len(others) >= queue.reviewers:
        raise ValidationError({"verdict": "Others have judged this sample meanwhile, as many as the queue wants."})
    with connection.cursor() as cursor:
        cursor.execute(_CLAIM, [item.pk, actor.pk])
        seconds, live = cursor.fetchone() or (None, False)
    seen = queue.blind and queue.pk not in {blind.pk for blind in blind_queues(actor, queue.run_id)}
    return InQueue(queue, seconds if timed and live else None, seen)


def judges_of(item: ReviewItem) -> set[int]:
    """Ids of the people who judged it in its queue."""
    named: dict[str, Any] = {"queues": [item.queue_id], "sample": item.sample_id}
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT by_id FROM ({JUDGED}) AS newest WHERE verdict <> '' AND sample_id = %(sample)s", named)
        return {by for (by,) in cursor.fetchall()}


_OPEN = f"""
    WITH newest AS ({JUDGED}), judged AS (
        SELECT sample_id, count(*) AS people FROM newest WHERE verdict <> '' GROUP BY sample_id
    )
    SELECT FROM review_reviewitem AS item JOIN review_sample AS sample ON sample.id = item.sample_id
    LEFT JOIN judged ON judged.sample_id = item.sample_id
    WHERE item.queue_id = %(queue)s AND sample.redacted_at IS NULL
        AND coalesce(judged.people, 0) < %(reviewers)s LIMIT 1
"""


def _judged(item: ReviewItem, actor: User, row: Annotation | None) -> None:
    """Keep whether the queue is done; a sample that was judged is no longer before the person."""
    queue = item.queue
    if row is not None and row.verdict:
        ReviewClaim.objects.filter(item=item, by=actor).update(expires_at=Now())
    with connection.cursor() as cursor:
        cursor.execute(_OPEN, {"queue": queue.pk, "queues": [queue.pk], "reviewers": queue.reviewers})
        done = cursor.fetchone() is None
    rows = ReviewQueue.objects.filter(pk=queue.pk, done_at__isnull=done)
    rows.update(done_at=Now() if done else None)
