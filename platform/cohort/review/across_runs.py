"""The same training problem as several runs sampled it: which problems there are, and each run's newest group.

Reads only. A problem is the same where its id and its prompt are: ids of two datasets may be equal by chance.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import connection
from django.db.models import Prefetch

from cohort.review.models import Group, Sample
from cohort.review.problems import problem_key
from cohort.runs.models import Run

STEPS = 100
"""Of each run, so many of its newest steps are searched for problems that others sampled too."""
MOST_PROBLEMS = 500


@dataclass(frozen=True)
class ProblemAcross:
    problem_id: str
    prompt_md5: str
    """Tells problems with one id apart; in hex."""
    values: tuple[float | None, ...]
    """Mean reward over the groups found, of each run in order; None: the run sampled it in none of them."""
    newest: tuple[int, ...]
    """Ids of the runs' newest groups of it."""

    @property
    def key(self) -> str:
        """Names the problem in an address."""
        return problem_key(self.prompt_md5, self.problem_id)

    @property
    def spread(self) -> float:
        """Largest minus smallest mean reward."""
        known = [mean for mean in self.values if mean is not None]
        return max(known) - min(known)


_PROBLEMS = """
    SELECT problem_id, prompt_md5, array_agg(run_id), array_agg(mean), array_agg(newest)
    FROM (
        SELECT sampled.run_id, sampled.problem_id, md5(sampled.prompt) AS prompt_md5,
            avg(sampled.reward_mean) AS mean,
            (array_agg(sampled.id ORDER BY sampled.step DESC, sampled.index))[1] AS newest
        FROM unnest(%s::bigint[], %s::int[]) AS part (run_id, after)
        JOIN review_group AS sampled ON sampled.run_id = part.run_id AND sampled.step > part.after
        JOIN runs_attempt AS attempt ON attempt.id = sampled.attempt_id
            AND (attempt.valid_through IS NULL OR sampled.step <= attempt.valid_through)
        WHERE sampled.reward_mean IS NOT NULL
        GROUP BY 1, 2, 3
    ) AS by_run
    GROUP BY 1, 2
    HAVING count(*) > 1
    ORDER BY max(mean) - min(mean) DESC, 1, 2
    LIMIT %s
"""


def problems_across(runs: Sequence[Run]) -> list[ProblemAcross]:
    """Problems that two runs or more sampled within their newest STEPS steps, those whose mean rewards differ most
    first, MOST_PROBLEMS at most. One query."""
    with connection.cursor() as cursor:
        pks = [run.pk for run in runs]
        cursor.execute(_PROBLEMS, [pks, [max(0, run.step - STEPS) for run in runs], MOST_PROBLEMS])
        rows = cursor.fetchall()
    return [
        ProblemAcross(problem, md5, tuple(map(dict(zip(ids, means, strict=True)).get, pks)), tuple(newest))
        for problem, md5, ids, means, newest in rows
    ]


def groups_across(problem: ProblemAcross) -> dict[int, Group]:
    """Run → its newest group of the problem, with all samples in order. Two queries."""
    samples = Prefetch("samples", queryset=Sample.objects.order_by("index"))
    return {group.run_id: group for group in Group.objects.filter(pk__in=problem.newest).prefetch_related(samples)}
