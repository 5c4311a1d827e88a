"""The samples of which a re-score made something, as a condition on samples.

They may be half of a million. A join that hashes so many costs several times what reading a run's samples does; as bits
of a string, one for each id, they cost next to nothing.
"""

import struct
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from django.contrib.postgres.aggregates import BitOr
from django.db.models import BigIntegerField, BinaryField, F, Func, IntegerField, Max, Min, Q, QuerySet, Value
from django.db.models.functions import Cast, Greatest, Least
from django.db.models.lookups import Exact

from cohort.review.models import Change, Rescore, RescoredSample
from cohort.runs.models import Run

MOST_IDS = 1 << 24
"""From the first of the samples to the last, for a string of bits: 2 MB. Beyond, other runs stored very many samples
meanwhile, and the rows are joined."""
_WORD = 64
_CONDITIONS = {
    "differs": Q(differs=True),
    "lower": Q(change=Change.LOWER),
    "higher": Q(change=Change.HIGHER),
    "unscored": Q(change=Change.UNSCORED, value=None),
}


@dataclass(frozen=True)
class Bits:
    first: int
    """Id of the first bit."""
    content: bytes
    """Its first and its last bit are 0, so that an id outside counts as the nearest of them."""


def rescored(run: Run, pk: int, what: str) -> Q:
    """Of samples; fits none where the re-score is of another run. `what`: lower, higher, unscored or differs, as
    `Change`."""
    rescore = Rescore.objects.filter(pk=pk, run=run).only("at", "done").first()
    if rescore is None:
        return Q(pk__in=[])
    bits = _bits((pk, rescore.at, rescore.done), what)
    if bits is None:
        return Q(pk__in=_rows(pk, what).values("sample"))
    last = 8 * len(bits.content) - 1
    at = Least(Greatest(F("pk") - Value(bits.first), Value(0)), Value(last), output_field=BigIntegerField())
    content = Value(bits.content, output_field=BinaryField())
    return Q(Exact(Func(content, at, function="get_bit", output_field=IntegerField()), 1))


def _rows(pk: int, what: str) -> QuerySet[RescoredSample]:
    return RescoredSample.objects.filter(_CONDITIONS[what], rescore=pk).order_by()


@lru_cache(maxsize=8)
def _bits(scored: tuple[int, datetime, int], what: str) -> Bits | None:
    """None where they would be too many. `scored`: the re-score's id, when it was requested, and how many samples it
    has; no row is ever changed, so that these mean the same rows in every call."""
    rows = _rows(scored[0], what)
    ends = rows.aggregate(first=Min("sample"), last=Max("sample"))
    if ends["first"] is None:
        return Bits(0, bytes(8))
    if ends["last"] - ends["first"] > MOST_IDS:
        return None
    word = F("sample").bitrightshift(6)
    unit: Any = Cast(1, BigIntegerField())  # type: ignore[arg-type]
    bit = unit.bitleftshift(Cast(F("sample").bitand(_WORD - 1), IntegerField()))
    words = dict(rows.values(word=word).annotate(bits=BitOr(bit)).values_list("word", "bits"))
    least, most = min(words) - 1, max(words) + 1
    content = struct.pack(f"<{most - least + 1}q", *(words.get(at, 0) for at in range(least, most + 1)))
    return Bits(_WORD * least, content)
