"""Fills the index of words in the background, so that ingest does not pay for it, and takes deleted texts from it.

An attempt's records commit in order under its lock. So "the samples of records beyond the position" is exact, and a
round that was cut off continues where it was.
"""

from collections.abc import Iterable

from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Coalesce

from cohort.review.models import Group, Sample, SampleWords, WordsPosition
from cohort.review.words import folded, hashes, words_of
from cohort.runs.models import Attempt

GROUPS = 25
"""Indexed in one transaction: with 16 completions of 32,000 tokens each, some 50 MB of text."""
BATCHES = 20
"""In one round: sealing waits meanwhile."""

_INSERT = """
    INSERT INTO review_samplewords (sample_id, words)
    SELECT id, words::bigint[] FROM unnest(%s::bigint[], %s::text[]) AS row (id, words)
"""


def words_index(*, batches: int = BATCHES) -> int:
    """Index what was stored since the last round. Returns how many samples were indexed. May run twice at once."""
    indexed = Coalesce("words_position__seq", 0)
    waiting = Attempt.objects.alias(indexed=indexed).filter(acked_seq__gt=F("indexed")).order_by("pk")
    total = 0
    for attempt_id, run_id in waiting.values_list("pk", "run_id"):
        while batches > 0 and (count := _index_batch(attempt_id, run_id)) is not None:
            total, batches = total + count, batches - 1
    return total


@transaction.atomic
def _index_batch(attempt_id: int, run_id: int) -> int | None:
    """How many samples; None when all are indexed, or another process is at it."""
    if not _lock("pg_try_advisory_xact_lock", run_id):
        return None
    position = WordsPosition.objects.filter(attempt=attempt_id).values_list("seq", flat=True).first() or 0
    stored = Attempt.objects.values_list("acked_seq", flat=True).get(pk=attempt_id)
    if stored <= position:
        return None
    records = Group.objects.filter(attempt=attempt_id, seq__gt=position, seq__lte=stored).order_by("seq")
    groups = list(records.values_list("pk", "seq")[:GROUPS])
    samples = Sample.objects.filter(group__in=[pk for pk, _ in groups], redacted_at=None).order_by("pk")
    texts = samples.values_list("pk", "completion")
    rows = [(pk, f"{{{','.join(map(str, hashes(run_id, words_of(folded(text)))))}}}") for pk, text in texts]
    with connection.cursor() as cursor:
        cursor.execute(_INSERT, [[pk for pk, _ in rows], [words for _, words in rows]])
    WordsPosition.objects.update_or_create(
        attempt_id=attempt_id, defaults={"seq": groups[-1][1] if len(groups) == GROUPS else stored}
    )
    return len(rows)


def words_delete(*, run_id: int, samples: Iterable[int]) -> None:
    """Take deleted texts from the index, in the transaction that deletes them and after it has."""
    _lock("pg_advisory_xact_lock", run_id)  # what is being indexed now was read before, and must be stored to be seen
    SampleWords.objects.filter(sample__in=list(samples)).delete()


def _lock(function: str, run_id: int) -> bool:
    """Whether it is held, until the transaction ends; `pg_advisory_xact_lock` waits for it."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {function}(hashtextextended(%s, 0))", [f"cohort words {run_id}"])
        return cursor.fetchone()[0] is not False
