"""The reward of each run on a page of the list as a small line: a bounded number of steps of each, in one query."""

from collections.abc import Mapping, Sequence

from django.db import connection

from cohort.base.formatting import fixed

POINTS = 24
WIDTH, HEIGHT, EDGE = 72, 20, 2

# The steps of a run are looked up one by one, however long it is; OFFSET 0 keeps that apart from the join.
_STEPS = """
    WITH shown AS MATERIALIZED (
        SELECT run_id, ARRAY(
            SELECT 1 + round((newest - 1) * place / %s::float)::int FROM generate_series(0, %s) AS place
        ) AS steps
        FROM unnest(%s::bigint[], %s::int[]) AS run (run_id, newest)
    )
    SELECT shown.run_id, drawn.steps, drawn.rewards
    FROM shown CROSS JOIN LATERAL (
        SELECT array_agg(step ORDER BY step) AS steps, array_agg(reward::float ORDER BY step) AS rewards
        FROM (
            SELECT DISTINCT ON (kept.step) kept.step, kept.reward
            FROM (
                SELECT attempt_id, step, metrics -> 'reward' AS reward FROM runs_stepmetric
                WHERE run_id = shown.run_id AND step = ANY(shown.steps) OFFSET 0
            ) AS kept
            JOIN runs_attempt AS attempt ON attempt.id = kept.attempt_id
            WHERE attempt.valid_through IS NULL OR kept.step <= attempt.valid_through
            ORDER BY kept.step, attempt.fence DESC
        ) AS stored
        WHERE jsonb_typeof(reward) = 'number'
    ) AS drawn
    WHERE array_length(drawn.steps, 1) > 1
"""


class Trend:
    """`points` for a polyline, and the same in words."""

    def __init__(self, steps: Sequence[int], rewards: Sequence[float]) -> None:
        """Steps in order, two or more, with the reward of each."""
        low, high, first, last = min(rewards), max(rewards), steps[0], steps[-1]
        across, up = (WIDTH - 2 * EDGE) / max(last - first, 1), (HEIGHT - 2 * EDGE) / ((high - low) or 1)
        level = HEIGHT / 2 if high == low else None
        self.points = " ".join(
            f"{EDGE + (step - first) * across:.1f},{level or HEIGHT - EDGE - (reward - low) * up:.1f}"
            for step, reward in zip(steps, rewards, strict=True)
        )
        self.words = f"Reward from {fixed(rewards[0])} at step {first:,} to {fixed(rewards[-1])} at step {last:,}"
        self.newest = self.points.rpartition(" ")[2].split(",")


def trends(newest: Mapping[int, int]) -> dict[int, Trend]:
    """By run, of those with two steps or more. `newest`: the newest step of each run."""
    trained = {run_id: step for run_id, step in newest.items() if step > 1}
    if not trained:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(_STEPS, [POINTS - 1, POINTS - 1, list(trained), list(trained.values())])
        return {run_id: Trend(steps, rewards) for run_id, steps, rewards in cursor.fetchall()}
