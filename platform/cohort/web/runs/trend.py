"""The reward of each run on a page of the list as a small line: a bounded number of steps of each, in one query."""

from collections.abc import Sequence

from django.db import connection

from cohort.base.formatting import fixed
from cohort.runs.models import Run

POINTS = 24
WIDTH, HEIGHT, EDGE = 72, 20, 2

_STEPS = """
    SELECT shown.run_id, point.step, (stored.metrics ->> 'reward')::float
    FROM unnest(%s::bigint[], %s::int[]) AS shown (run_id, newest)
    CROSS JOIN LATERAL (
        SELECT DISTINCT 1 + round((shown.newest - 1) * place / %s::float)::int AS step
        FROM generate_series(0, %s) AS place
    ) AS point
    CROSS JOIN LATERAL (
        SELECT metrics FROM runs_stepmetric AS kept JOIN runs_attempt AS attempt ON attempt.id = kept.attempt_id
        WHERE kept.run_id = shown.run_id AND kept.step = point.step
            AND (attempt.valid_through IS NULL OR kept.step <= attempt.valid_through)
        ORDER BY attempt.fence DESC LIMIT 1
    ) AS stored
    WHERE jsonb_typeof(stored.metrics -> 'reward') = 'number'
    ORDER BY shown.run_id, point.step
"""


class Trend:
    """`points` for a polyline, and the same in words."""

    def __init__(self, steps: Sequence[tuple[int, float]]) -> None:
        """(step, reward) in order, two or more."""
        rewards = [reward for _, reward in steps]
        low, high, first, last = min(rewards), max(rewards), steps[0][0], steps[-1][0]
        across, up = (WIDTH - 2 * EDGE) / max(last - first, 1), (HEIGHT - 2 * EDGE) / ((high - low) or 1)
        level = HEIGHT / 2 if high == low else None
        self.points = " ".join(
            f"{EDGE + (step - first) * across:.1f},{level or HEIGHT - EDGE - (reward - low) * up:.1f}"
            for step, reward in steps
        )
        self.words = f"Reward from {fixed(rewards[0])} at step {first:,} to {fixed(rewards[-1])} at step {last:,}"
        self.newest = self.points.rpartition(" ")[2].split(",")


def trends(runs: Sequence[Run]) -> dict[int, Trend]:
    """By run, of those with two steps or more."""
    trained = [run for run in runs if run.step > 1]
    if not trained:
        return {}
    with connection.cursor() as cursor:
        ids, newest = [run.pk for run in trained], [run.step for run in trained]
        cursor.execute(_STEPS, [ids, newest, POINTS - 1, POINTS - 1])
        steps: dict[int, list[tuple[int, float]]] = {}
        for run_id, step, reward in cursor.fetchall():
            steps.setdefault(run_id, []).append((step, reward))
    return {run_id: Trend(kept) for run_id, kept in steps.items() if len(kept) > 1}
