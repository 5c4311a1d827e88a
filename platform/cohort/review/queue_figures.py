"""How far review queues are: who judged how many and how fast, what waits for whom, and how far two reviewers agree."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, repeat
from typing import NamedTuple

from django.db import connection
from django.db.models import QuerySet
from django.db.models.expressions import RawSQL

from cohort.accounts.models import Project, User
from cohort.review.models import ReviewItem, ReviewQueue
from cohort.review.waiting import JUDGED, waiting_for
from grpo_core.stats.agreement import Kappa, cohen_kappa

_PEOPLE = f"""
    WITH newest AS ({JUDGED})
    SELECT newest.queue_id, newest.by_id, people.username, count(*),
        percentile_cont(0.5) WITHIN GROUP (ORDER BY newest.seconds), count(*) FILTER (WHERE newest.unblinded)
    FROM newest JOIN accounts_user AS people ON people.id = newest.by_id
    WHERE newest.verdict <> '' GROUP BY newest.queue_id, newest.by_id, people.username
    ORDER BY newest.queue_id, people.username
"""


class Pace(NamedTuple):
    """Of one person in one queue."""

    queue: int
    user: int
    username: str
    judged: int
    seconds: float | None
    """Median from a sample's being shown to the judgement."""
    unblinded: int
    """Judgements given after blindness was given up."""

    @property
    def per_minute(self) -> float | None:
        return 60 / self.seconds if self.seconds else None


def paces(queues: Iterable[ReviewQueue]) -> dict[int, list[Pace]]:
    """Queue id → everyone who judged in it, by name."""
    by_queue: dict[int, list[Pace]] = {queue.pk: [] for queue in queues}
    with connection.cursor() as cursor:
        cursor.execute(_PEOPLE, {"queues": [*by_queue]})
        for row in cursor.fetchall():
            by_queue[row[0]].append(Pace(*row))
    return by_queue


def own_queues(project: Project, reader: User) -> list[tuple[ReviewQueue, int]]:
    """Queues that wait for the reader, assigned to them or begun by them, with how many samples do."""
    rows = ReviewQueue.objects.filter(project=project, done_at=None).prefetch_related("assignees").order_by("pk")
    queues = list(rows)
    if not queues:
        return []
    begun = {queue for queue, people in paces(queues).items() if any(pace.user == reader.pk for pace in people)}
    waiting = waiting_for(reader, queues)
    return [
        (queue, waiting[queue.pk])
        for queue in queues
        if queue.pk in waiting and (queue.pk in begun or any(user.pk == reader.pk for user in queue.assignees.all()))
    ]


_VERDICTS = f"""
    WITH newest AS ({JUDGED}), judged AS (
        SELECT sample_id, array_agg(verdict::text ORDER BY by_id) AS verdicts
        FROM newest WHERE verdict <> '' GROUP BY sample_id
    )
    SELECT coalesce(verdicts, '{{}}'), count(*), (SELECT count(DISTINCT by_id) FROM newest WHERE verdict <> '')
    FROM review_reviewitem AS item LEFT JOIN judged ON judged.sample_id = item.sample_id
    WHERE item.queue_id = %(queue)s GROUP BY verdicts
"""
_DIFFERING = f"""
    SELECT sample_id FROM ({JUDGED}) AS newest WHERE verdict <> '' GROUP BY sample_id
    HAVING count(*) = 2 AND min(verdict) <> max(verdict)
"""


@dataclass(frozen=True)
class Figures:
    """Of one queue."""

    queue: ReviewQueue
    verdicts: Mapping[tuple[str, ...], int]
    """Verdicts of those who judged a sample, in the order of the people → samples with these."""
    people: int

    @property
    def samples(self) -> int:
        return sum(self.verdicts.values())

    @property
    def judged(self) -> int:
        """Samples with all the judgements that they are to have."""
        return sum(count for given, count in self.verdicts.items() if len(given) >= self.queue.reviewers)

    @property
    def differ_on(self) -> int:
        """Samples on which the two who judged differ."""
        return sum(first != second for first, second in self._pairs())

    @property
    def kappa(self) -> Kappa:
        """Of the two reviewers, over samples that both judged right or wrong."""
        return cohen_kappa(pair for pair in self._pairs() if "unsure" not in pair)

    @property
    def kappa_of_three(self) -> Kappa:
        """As `kappa`, with "unsure" as a third class."""
        return cohen_kappa(self._pairs())

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """Of each sample that two judged."""
        pairs = (((given[0], given[1]), count) for given, count in self.verdicts.items() if len(given) == 2)
        return chain.from_iterable(repeat(pair, count) for pair, count in pairs)


def figures_of(queue: ReviewQueue) -> Figures:
    """One query."""
    with connection.cursor() as cursor:
        cursor.execute(_VERDICTS, {"queue": queue.pk, "queues": [queue.pk]})
        rows = cursor.fetchall()
    return Figures(queue, {tuple(given): count for given, count, _ in rows}, rows[0][2] if rows else 0)


def differing(queue: ReviewQueue) -> QuerySet[ReviewItem]:
    """Items of the samples on which the two who judged differ, in the queue's order."""
    samples = RawSQL(_DIFFERING.replace("%(queues)s", "%s"), [[queue.pk]])
    items = queue.items.filter(sample__in=samples).select_related("sample").order_by("number")
    return items.only("queue", "number", "sample__index", "sample__group")
