"""The training problems of one run through time: how often each was sampled, and how its groups went, step by step.

Reads only. A problem is the same where its id and its prompt are: ids of two datasets may be equal by chance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import md5
from typing import Any

from django.db import connection
from django.db.models import Prefetch, QuerySet, Value
from django.db.models.functions import MD5, Left
from django.db.models.lookups import Exact

from cohort.base.storable import storable
from cohort.review.models import Group, Sample
from cohort.review.services import current_groups
from cohort.runs.models import EvalItem, Run
from cohort.runs.transitions import current_evaluations

PAGE = 50
"""Problems on one page of the list."""
DIGITS = 8
"""Of a prompt's md5 in a key."""
SORTS = {
    "change": "fell most",
    "-change": "rose most",
    "newest": "lowest now",
    "-times": "sampled most",
    "id": "id",
}
_ORDERS = {
    "change": "change ASC NULLS LAST",
    "-change": "change DESC NULLS LAST",
    "newest": "newest_mean ASC NULLS LAST",
    "-times": "times DESC",
    "id": "problem_id",
}
assert SORTS.keys() == _ORDERS.keys()


def problem_key(prompt_md5: str, problem_id: str) -> str:
    """Names a problem in an address."""
    return f"{prompt_md5[:DIGITS]}:{problem_id}"


def key_of(group: Group) -> str:
    """Of the group's problem."""
    return problem_key(md5(group.prompt.encode(), usedforsecurity=False).hexdigest(), group.problem_id)


@dataclass(frozen=True)
class Problem:
    prompt: str
    """Of a long one its beginning and its end."""
    problem_id: str
    prompt_md5: str
    """In hex."""
    times: int
    """Groups of it."""
    first: int
    newest: int
    """Steps of its first and its newest group."""
    first_group: int
    newest_group: int
    """Their ids."""
    first_mean: float | None
    newest_mean: float | None
    """Their mean rewards; None where nothing of the group was scored."""
    change: float | None
    """Newest minus first mean reward; None of a problem that was sampled once."""

    @property
    def key(self) -> str:
        return problem_key(self.prompt_md5, self.problem_id)


# Which rows are first and newest is known without a sort: arrays are compared number by number. An id is exact in a
# double up to 2⁵³. The prompts are of one page alone.
_PROBLEMS = """
    WITH every AS (
        SELECT sampled.problem_id, md5(sampled.prompt) AS prompt_md5, count(*) AS times,
            min(ARRAY[sampled.step, sampled.index, sampled.id, sampled.reward_mean]) AS first,
            max(ARRAY[sampled.step, sampled.index, sampled.id, sampled.reward_mean]) AS newest
        FROM review_group AS sampled
        JOIN runs_attempt AS attempt ON attempt.id = sampled.attempt_id
            AND (attempt.valid_through IS NULL OR sampled.step <= attempt.valid_through)
        WHERE sampled.run_id = %s
        GROUP BY 1, 2
    ), named AS (
        SELECT problem_id, prompt_md5, times, first[1]::int AS first_step, newest[1]::int AS newest_step,
            first[3]::bigint AS first_group, newest[3]::bigint AS newest_group,
            first[4] AS first_mean, newest[4] AS newest_mean,
            CASE WHEN times > 1 THEN newest[4] - first[4] END AS change, count(*) OVER () AS total
        FROM every
    )
    SELECT (
        SELECT CASE WHEN length(prompt) > 300 THEN left(prompt, 100) || '…' || right(prompt, 200) ELSE prompt END
        FROM review_group WHERE id = newest_group
    ), listed.*
    FROM (SELECT * FROM named ORDER BY {order}, problem_id, prompt_md5 LIMIT %s OFFSET %s) AS listed
"""


class Problems(Sequence[Problem]):
    """A run's problems in an order of SORTS, to be listed page by page: a slice is one query."""

    def __init__(self, run: Run, sort: str) -> None:
        self._run, self._order = run, _ORDERS[sort]

    def __len__(self) -> int:
        return self._first[0][-1] if self._first else 0

    @cached_property
    def _first(self) -> list[tuple[Any, ...]]:
        """Those of a first page: each row says how many there are, so that one query does for both."""
        return self._rows(0, PAGE)

    def __getitem__(self, index: Any) -> Any:
        assert isinstance(index, slice), "pages are slices"
        within = index.start == 0 and index.stop <= PAGE
        rows = self._first[: index.stop] if within else self._rows(index.start, index.stop - index.start)
        return [Problem(*row[:-1]) for row in rows]

    def _rows(self, start: int, count: int) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(_PROBLEMS.format(order=self._order), [self._run.pk, count, start])
            return list(cursor.fetchall())


def groups_of(run: Run, key: str) -> QuerySet[Group]:
    """Current groups of the problem in order; empty where the run has no such problem."""
    digits, _, problem_id = storable(key).partition(":")
    same = Exact(Left(MD5("prompt"), DIGITS), Value(digits))
    return current_groups(run).filter(same, problem_id=problem_id)


def squares_of() -> "Prefetch[Any]":
    """What of a group's samples decides right or wrong."""
    samples = Sample.objects.only("group_id", "index", "components", "mask_cause").order_by("index")
    return Prefetch("samples", queryset=samples)


def base_answers(run: Run, group: Group) -> QuerySet[EvalItem]:
    """How the base model answered the problem in the evaluation before training, in each suite that has it."""
    items = current_evaluations(EvalItem.objects.filter(run=run, phase="before"))
    return items.filter(problem_id=group.problem_id, prompt=group.prompt).order_by("suite", "pk")
