"""The list of runs over HTTP: how long a page of it takes among many runs, however it is searched and sorted, and how
many queries it asks. `web_load.py --part list` calls it.

The runs are copies of one that the launch service made, with other settings, the newest values of 40 metrics, 24 stored
steps and two evaluations each. One client with a kept connection asks for each page; in turn with it as a poll of
that page which finds nothing new, for which the rows are searched and read and no HTML is made ("rows alone"), and for
MLflow's answer to the same search.
"""

import http.client
import statistics
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any
from urllib.parse import urlencode

from cohort_web import CohortWeb, signed_in, stock_maker
from mlflow_search import MlflowSearch

SERIES, STEPS = 40, 24
P95_MS, QUERIES, LEAST_RATIO = 100, 15, 10
PAGES = {
    "newest": {},
    "a word": {"q": "run-99"},
    "a setting": {"q": "G>=16"},
    "three settings": {"q": "G>=16 lr<1e-5 beta=0"},
    "a metric": {"q": "reward>0.5"},
    "a score": {"q": "eval.heldout>60%"},
    "all kinds": {"q": "run G>=16 reward>0.2 eval.heldout>0.3 state=succeeded -tag:old"},
    "sorted by a metric": {"sort": "-reward"},
    "sorted by a setting": {"sort": "lr"},
    "sorted by a score": {"sort": "-eval.heldout"},
    "searched and sorted": {"q": "G>=8 reward>0.3", "sort": "-eval.heldout"},
    "twelve columns": {"columns": "state,reward,G,lr,beta,seed,loss,steps,eval.heldout,metric/3,metric/7,tag"},
}

_RUNS = """
    INSERT INTO runs_run ({columns})
    SELECT {values} FROM runs_run AS made, generate_series(1, %(count)s) AS number WHERE made.id = %(made)s
"""
_CONFIG = """
    made.config
    || jsonb_build_object('seed', number, 'name', 'run-' || number)
    || jsonb_build_object('sampling', made.config -> 'sampling' || jsonb_build_object(
        'group_size', (ARRAY[4, 8, 16, 32])[1 + number % 4], 'temperature', 0.5 + number % 7 / 10.0))
    || jsonb_build_object('optim', made.config -> 'optim' || jsonb_build_object(
        'lr', (ARRAY[1e-6, 5e-6, 1e-5])[1 + number % 3], 'steps', 100 * (1 + number % 5)))
"""
_METRICS = """
    (SELECT jsonb_object_agg('metric/' || series, sin(number * series)) FROM generate_series(2, {series}) AS series)
    || jsonb_build_object('reward', abs(sin(number)))
"""
_STORED = """
    INSERT INTO runs_stepmetric (attempt_id, run_id, seq, step, at, metrics, seconds)
    SELECT attempt.id, attempt.run_id, at.step, at.step, now(),
           run.latest_metrics || jsonb_build_object('reward', sin(at.step)), '{"total": 3.0}'
    FROM runs_attempt AS attempt JOIN runs_run AS run ON run.id = attempt.run_id, generate_series(1, %s) AS at (step)
"""
_ATTEMPTS = """
    INSERT INTO runs_attempt ({columns})
    SELECT {values} FROM runs_attempt AS made, runs_run AS run WHERE made.id = %(made)s AND run.id <> made.run_id
"""
_SCORES = """
    INSERT INTO runs_evalresult (attempt_id, run_id, seq, at, phase, step, suite, problems, correct, truncated, errors,
                                 mean_tokens, seconds, protocol)
    SELECT attempt.id, attempt.run_id, 1000 + place, now(), phase, 0, 'heldout', 200,
           (attempt.run_id * 7 + place * 60) %% 200, 0, 0, 10, 1, '{}'
    FROM runs_attempt AS attempt, unnest(ARRAY['before', 'after']) WITH ORDINALITY AS phases (phase, place)
"""


def main(web: CohortWeb, *, count: int, rounds: int, peer: MlflowSearch | None) -> int:
    """`peer`: an MLflow server with as many runs, which is asked in turn with each page."""
    cookie, client = prepare(web, count)
    web.start()
    link = http.client.HTTPConnection("127.0.0.1", web.port, timeout=120)
    head = f"{'of ' + format(count, ',') + ' runs':22} {'queries':>8} {'median, ms':>11} {'p95, ms':>8} {'KB':>6}"
    print(f"{head} {'rows alone':>11}" + (f" {'MLflow, median':>15} {'ratio':>6} {'of rows':>8}" if peer else ""))
    slowest, most, ratios = ("", 0.0), ("", 0), []
    for name, query in PAGES.items():
        address = f"/p/ours/runs/?{urlencode(query or {'q': ''})}"
        queries, unchanged = _queries(client, address), f"{address}&v={_version(query)}"
        whole, read, other = [], [], []
        for number in range(rounds + 3):  # the first three of each fill caches
            seconds, size = get(link, address, cookie, 200)
            alone, _ = get(link, unchanged, cookie, 204)
            peer_took = peer.seconds(name) if peer else None
            if number >= 3:
                whole.append(1000 * seconds)
                read.append(1000 * alone)
                other += [] if peer_took is None else [1000 * peer_took]
        page, rows, p95 = statistics.median(whole), statistics.median(read), statistics.quantiles(whole, n=20)[-1]
        line = f"{name:22} {queries:8} {page:11.1f} {p95:8.1f} {size / 1000:6.0f} {rows:11.1f}"
        if other:
            ratios.append(statistics.median(other) / page)
            line += f" {statistics.median(other):15.1f} {ratios[-1]:6.1f} {statistics.median(other) / rows:8.1f}"
        print(line, flush=True)
        slowest, most = max(slowest, (name, p95), key=_second), max(most, (name, queries), key=_second)
    link.close()
    for name, value, limit in (("list_p95_ms", slowest[1], P95_MS), ("list_queries", most[1], QUERIES + 1)):
        print(f"RESULT {name} {value:.1f} {limit} {'ok' if value < limit else 'miss'}")
    if ratios:
        least = min(ratios)
        print(f"RESULT list_least_ratio {least:.1f} {LEAST_RATIO} {'ok' if least >= LEAST_RATIO else 'miss'}")
    return 0


def prepare(web: CohortWeb, count: int) -> tuple[str, Any]:
    """(the cookie of a signed-in viewer, a client of Django's in this process, by which queries are counted)."""
    from django.db import connection

    from cohort.runs.models import Attempt, Run

    maker = stock_maker()
    made = maker.run("run-0", state="succeeded", preset="dapo")
    attempt = maker.attempt(made, state="finished")
    Run.objects.filter(pk=made.pk).update(step=STEPS)
    other = {
        "name": "'run-' || number",
        "config": _CONFIG,
        "latest_metrics": _METRICS.format(series=SERIES),
        "tags": "CASE WHEN number % 10 = 0 THEN ARRAY['old'] ELSE ARRAY['sweep'] END",
        "created_at": "now() - number * interval '1 minute'",
    }
    own = {"run_id": "run.id", "token_digest": "md5(run.id::text) || md5('x' || run.id)"}
    migration = import_module("migrations.runs.0003_run_values")
    with connection.cursor() as cursor:
        values = {"count": count, "made": made.pk}
        cursor.execute(_copied(_RUNS, Run, other), values)
        cursor.execute(_copied(_ATTEMPTS, Attempt, own), {"made": attempt.pk})
        cursor.execute(_STORED, [STEPS])
        cursor.execute(_SCORES.replace("%%", "%"))
        cursor.execute("DELETE FROM runs_runvalue")
        cursor.execute(migration.CONFIGS)
        cursor.execute(migration.EVALUATIONS)
        cursor.execute("VACUUM (ANALYZE)")
        cursor.execute("SELECT count(*), pg_size_pretty(pg_total_relation_size('runs_runvalue')) FROM runs_runvalue")
        print("{:,} values, {}".format(*cursor.fetchone()), file=sys.stderr)
    return signed_in("bob")


def _copied(statement: str, model: Any, other: dict[str, str]) -> str:
    """With every column of the table but its id; those of `other` as it says, the rest as made."""
    names = [field.column for field in model._meta.concrete_fields if not field.primary_key]
    values = [other.get(name, f"made.{name}") for name in names]
    return statement.format(columns=", ".join(names), values=", ".join(value.replace("%", "%%") for value in values))


def _queries(client: Any, address: str) -> int:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as captured:
        answer = client.get(address, headers={"host": "127.0.0.1"})
    if answer.status_code != 200:
        raise RuntimeError(f"{address} was answered with {answer.status_code}")
    return len(captured)


def _version(query: dict[str, str]) -> str:
    """Of the page; who asks for a page of this version has its rows searched and read, and gets none."""
    from django.http import QueryDict

    from cohort.accounts.models import Project
    from cohort.web.runs.list_rows import RunPage

    return RunPage(Project.objects.get(slug="ours"), QueryDict(urlencode(query))).version


def get(
    link: http.client.HTTPConnection, address: str, cookie: str, status: int, headers: dict[str, str] | None = None
) -> tuple[float, int]:
    """(seconds until all of the answer was there, its bytes)."""
    began = time.perf_counter()
    link.request("GET", address, headers={"Cookie": f"sessionid={cookie}", **(headers or {})})
    answer = link.getresponse()
    size = len(answer.read())
    took = time.perf_counter() - began
    if answer.status != status:
        raise RuntimeError(f"{address} was answered with {answer.status}")
    return took, size


def _second(pair: Sequence[Any]) -> Any:
    return pair[1]
