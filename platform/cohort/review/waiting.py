"""What of review queues waits for whom, and which blind queues close a run's samples to a person meanwhile."""

from collections.abc import Sequence

from django.db import connection, transaction

from cohort.accounts.models import Role, User, reaches
from cohort.audit import services as audit
from cohort.review.models import ReviewClaim, ReviewQueue

JUDGED = """
    SELECT DISTINCT ON (queue_id, sample_id, by_id) queue_id, sample_id, by_id, verdict, seconds, unblinded, at
    FROM review_annotation WHERE queue_id = ANY(%(queues)s) ORDER BY queue_id, sample_id, by_id, id DESC
"""
"""Each person's newest opinion of a sample in a queue; one without a verdict is no judgement."""
_WAITING = f"""
    WITH newest AS ({JUDGED}), judged AS (
        SELECT queue_id, sample_id, count(*) AS people, bool_or(by_id = %(reader)s) AS mine
        FROM newest WHERE verdict <> '' GROUP BY queue_id, sample_id
    )
    SELECT item.queue_id, count(*) FROM review_reviewitem AS item
    JOIN review_reviewqueue AS queue ON queue.id = item.queue_id
    JOIN review_sample AS sample ON sample.id = item.sample_id
    LEFT JOIN judged ON judged.queue_id = item.queue_id AND judged.sample_id = item.sample_id
    WHERE item.queue_id = ANY(%(queues)s) AND queue.done_at IS NULL AND sample.redacted_at IS NULL
        AND coalesce(judged.people, 0) < queue.reviewers AND NOT coalesce(judged.mine, false)
    GROUP BY item.queue_id
"""


def waiting_for(reader: User, queues: Sequence[ReviewQueue]) -> dict[int, int]:
    """Queue id → how many of its samples the reader may still judge; queues that are assigned to others have none.
    Give it queues with their assignees read."""
    theirs = []
    for queue in queues:
        people = {user.pk for user in queue.assignees.all()}
        if not people or reader.pk in people:
            theirs.append(queue.pk)
    with connection.cursor() as cursor:
        cursor.execute(_WAITING, {"queues": theirs, "reader": reader.pk})
        return dict(cursor.fetchall())


def blind_queues(reader: User, *runs: int) -> list[ReviewQueue]:
    """Blind queues of the runs (by id) in which samples wait for the reader, who has not given up blindness. While
    there are any, nothing may show the reader what the verifier or others think of those runs' samples. Take them for
    people whose role reaches a judgement (`closed_to`). One query where the runs have no open blind queue."""
    rows = ReviewQueue.objects.filter(run__in=runs, blind=True, done_at=None).select_related("project")
    queues = list(rows.prefetch_related("assignees").order_by("pk"))
    if not queues:
        return []
    waiting = waiting_for(reader, queues)
    claims = ReviewClaim.objects.filter(item__queue__in=queues, by=reader, unblinded_at__isnull=False)
    given_up = {*claims.values_list("item__queue", flat=True).distinct()}
    return [queue for queue in queues if queue.pk in waiting and queue.pk not in given_up]


def closed_to(reader: User, role: str, run: int) -> bool:
    """Whether the run's samples are closed to the reader, who has this role in its project."""
    return reaches(role, Role.REVIEWER) and bool(blind_queues(reader, run))


_UNBLIND = """
    INSERT INTO review_reviewclaim AS claim (item_id, by_id, shown_at, expires_at, unblinded_at)
    SELECT id, %(actor)s, statement_timestamp(), statement_timestamp(), statement_timestamp()
    FROM review_reviewitem WHERE queue_id = %(queue)s
    ON CONFLICT (item_id, by_id) DO UPDATE SET unblinded_at = coalesce(claim.unblinded_at, excluded.unblinded_at)
"""


@transaction.atomic
def unblind(*, queue: ReviewQueue, actor: User) -> None:
    """Open the run's samples to the person; a judgement that they give in the queue afterwards says so. Without effect
    where the queue closes nothing to them."""
    if queue.pk not in {blind.pk for blind in blind_queues(actor, queue.run_id)}:
        return
    with connection.cursor() as cursor:
        cursor.execute(_UNBLIND, {"queue": queue.pk, "actor": actor.pk})
    subject = f"review_queue:{queue.pk}"
    audit.log(actor=audit.who(actor), kind="review_unblinded", subject=subject, project=queue.project)
