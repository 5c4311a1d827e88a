"""The charts of one run of a million steps over HTTP: all of it, and ranges of it zoomed to. Called by
`web_load.py --part series`.

The steps and their buckets are copied into the tables as ingest would have stored them. Each request asks for a range
that no other asked for, so none is answered from what was prepared before. A range that was zoomed to must come back
as it was stored, step by step.
"""

import http.client
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import psycopg
from cohort_web import CohortWeb, signed_in, stock_maker

SERIES = 40
ZOOMED = 1000
P95_MS = 100
SECONDS = {"sample": 1.25, "reward": 0.25, "update": 1.5, "total": 3.0}


def value_of(step: int, series: int) -> float:
    return round(math.sin(step * series / 1000) + 0.1 * math.sin(step * 7.7), 6)


def main(web: CohortWeb, *, steps: int, rounds: int) -> int:
    cookie, run = prepare(web, steps)
    web.start()
    link = http.client.HTTPConnection("127.0.0.1", web.port, timeout=120)
    chance = random.Random(1)
    ranges = {
        "all of it": [(1, steps - number) for number in range(rounds + 3)],
        "a tenth of it": [(first, first + steps // 10) for first in _firsts(chance, steps - steps // 10, rounds + 3)],
        f"{ZOOMED:,} steps of it": [
            (first, first + ZOOMED - 1) for first in _firsts(chance, steps - ZOOMED, rounds + 3)
        ],
    }
    worst = 0.0
    print(f"{format(steps, ',') + ' steps, 40 metrics':28} {'median, ms':>11} {'p95, ms':>8} {'KB':>6} {'points':>7}")
    for name, wanted in ranges.items():
        took, size, points = [], 0, 0
        for number, (first, last) in enumerate(wanted):
            began = time.perf_counter()
            address = f"/p/ours/runs/{run}/series.json?from={first}&to={last}"
            link.request("GET", address, headers={"Cookie": f"sessionid={cookie}"})
            answer = link.getresponse()
            body = answer.read()
            if number >= 3:
                took.append(time.perf_counter() - began)
            if answer.status != 200:
                raise RuntimeError(f"{address} was answered with {answer.status}")
            size, points = len(body), _checked(json.loads(body), first, last)
        p95 = 1000 * statistics.quantiles(took, n=20)[-1]
        worst = max(worst, p95)
        print(f"{name:28} {1000 * statistics.median(took):11.1f} {p95:8.1f} {size / 1000:6.0f} {points:7}")
    print(f"RESULT series_p95_ms {worst:.1f} {P95_MS} {'ok' if worst < P95_MS else 'miss'}")
    return 0


def _firsts(chance: random.Random, last: int, count: int) -> list[int]:
    return [chance.randrange(1, last) for _ in range(count)]


def _checked(answer: dict[str, Any], first: int, last: int) -> int:
    """How many points were drawn. Raises where a value is not the one of its step, or a step of a short range is
    missing."""
    drawn = answer["metrics"]["metric/3"]
    if any(abs(value - value_of(step, 3)) > 1e-9 for step, value in zip(answer["step"], drawn, strict=True)):
        raise RuntimeError(f"steps {first} to {last} came back with other values than were stored")
    if last - first < ZOOMED and answer["step"] != list(range(first, last + 1)):
        raise RuntimeError(f"steps {first} to {last} did not come back one by one")
    return len(drawn)


def prepare(web: CohortWeb, steps: int) -> tuple[str, int]:
    """(the cookie of a signed-in viewer, the run's id)."""
    from cohort.runs.models import Run

    maker = stock_maker()
    run = maker.run("long", state="succeeded", optim={"steps": steps})
    attempt = maker.attempt(run, state="finished")
    Run.objects.filter(pk=run.pk).update(step=steps)
    with psycopg.connect(web.environment["COHORT_DATABASE_URL"], autocommit=True) as database:
        _copy(database, attempt.pk, run.pk, steps)
        database.execute("VACUUM (ANALYZE)")
    return signed_in("bob")[0], run.pk


def _copy(database: "psycopg.Connection[Any]", attempt: int, run: int, steps: int) -> None:
    from cohort.ingest.buckets import FACTOR, WIDTHS, Numbers, joined, numbers, point

    def metrics_of(step: int) -> dict[str, float]:
        return {f"metric/{series}": value_of(step, series) for series in range(2, SERIES + 1)} | {
            "reward": value_of(step, 1)
        }

    def rows() -> Iterator[tuple[int, dict[str, float]]]:
        for step in range(1, steps + 1):
            yield step, metrics_of(step)
            if step % 100_000 == 0:
                print(f"  {step:,} steps stored", file=sys.stderr, flush=True)

    spent = json.dumps(SECONDS)
    open_parts: dict[int, list[Numbers]] = {width: [] for width in WIDTHS}
    buckets: list[tuple[int, int, str]] = []
    columns = "attempt_id, run_id, seq, step, at, metrics, seconds"
    with database.cursor() as cursor, cursor.copy(f"COPY runs_stepmetric ({columns}) FROM STDIN") as copy:
        for step, metrics in rows():
            copy.write_row((attempt, run, step, step, "2026-01-01 00:00:00+00", json.dumps(metrics), spent))
            part = point(numbers(metrics, SECONDS))
            for width in WIDTHS:
                open_parts[width].append(part)
                if step % width:
                    break
                part = joined(open_parts[width])
                open_parts[width] = []
                buckets.append((width, step - width + 1, json.dumps(part)))
    assert all(len(parts) < FACTOR for parts in open_parts.values())
    with (
        database.cursor() as cursor,
        cursor.copy("COPY runs_bucket (attempt_id, width, first_step, metrics) FROM STDIN") as copy,
    ):
        for width, first, metrics in buckets:
            copy.write_row((attempt, width, first, metrics))
