"""How far review queues are: who judged how many and how fast, what waits for whom, and how far two reviewers agree."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from django.db import connection

from cohort.accounts.models import Project, User
from cohort.review.models import ReviewItem, ReviewQueue
from cohort.review.queues import JUDGED
from grpo_core.stats.agreement import Kappa, cohen_kappa

_PEOPLE = f"""
    WITH newest AS ({JUDGED})
    SELECT newest.queue_id, newest.by_id, people.username, count(*),
        percentile_cont(0.5) WITHIN GROUP (ORDER BY newest.seconds), count(*) FILTER (WHERE newest.unblinded)
    FROM newest JOIN accounts_user AS people ON people.id = newest.by_id
    WHERE newest.verdict <> '' GROUP BY newest.queue_id, newest.by_id, people.username
    ORDER BY newest.queue_id, people.username
"""
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


@dataclass(frozen=True)
class Figures:
    """Of one queue."""

    queue: ReviewQueue
    verdicts: Mapping[int, Mapping[int, str]]
    """Sample id → user id → verdict, of those who judged."""
    items: Sequence[ReviewItem]

    @property
    def judged(self) -> int:
        """Samples with all the judgements that they are to have."""
        return sum(len(self.verdicts.get(item.sample_id, ())) >= self.queue.reviewers for item in self.items)

    @cached_property
    def _pairs(self) -> list[tuple[ReviewItem, tuple[str, str]]]:
        """Items that two judged, with their verdicts in the order of the people."""
        pairs = []
        for item in self.items:
            people = self.verdicts.get(item.sample_id, {})
            if len(people) == 2:
                first, second = sorted(people)
                pairs.append((item, (people[first], people[second])))
        return pairs

    @property
    def differing(self) -> list[ReviewItem]:
        return [item for item, (first, second) in self._pairs if first != second]

    @property
    def kappa(self) -> Kappa:
        """Of the two reviewers, over samples that both judged right or wrong."""
        return cohen_kappa(pair for _, pair in self._pairs if "unsure" not in pair)

    @property
    def kappa_of_three(self) -> Kappa:
        """As `kappa`, with "unsure" as a third class."""
        return cohen_kappa(pair for _, pair in self._pairs)

    @property
    def people(self) -> int:
        return len({person for verdicts in self.verdicts.values() for person in verdicts})


def figures_of(queue: ReviewQueue) -> Figures:
    """Two queries."""
    verdicts: dict[int, dict[int, str]] = {}
    named: dict[str, Any] = {"queues": [queue.pk]}
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT sample_id, by_id, verdict FROM ({JUDGED}) AS newest WHERE verdict <> ''", named)
        for sample, by, verdict in cursor.fetchall():
            verdicts.setdefault(sample, {})[by] = verdict
    items = queue.items.select_related("sample").only("queue", "number", "sample__index", "sample__group")
    return Figures(queue, verdicts, list(items.order_by("number")))
