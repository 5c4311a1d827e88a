"""MLflow's search of the same runs as `runs_list` makes: as many runs, 30 parameters and 40 newest metrics each, on the
same PostgreSQL, 50 runs of an answer. `web_load.py --part list --mlflow` calls it.

Its parameters are texts, which it compares by = alone, so a search that asks Cohort for G >= 16 asks it for G = '16'.
"""

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from cohort_web import free_port
from mlflow_server import MlflowServer, database_url

from cohort.cli.embedded.postgres import Postgres

PARAMETERS, SERIES = 30, 40
SEARCHES: dict[str, dict[str, Any]] = {
    "newest": {},
    "a word": {"filter": "attributes.run_name LIKE '%run-99%'"},
    "a setting": {"filter": "params.G = '16'"},
    "three settings": {"filter": "params.G = '16' AND params.lr = '1e-06' AND params.beta = '0'"},
    "a metric": {"filter": "metrics.reward > 0.5"},
    "a score": {"filter": "metrics.heldout > 0.6"},
    "sorted by a metric": {"order_by": ["metrics.reward DESC"]},
    "sorted by a setting": {"order_by": ["params.lr ASC"]},
    "sorted by a score": {"order_by": ["metrics.heldout DESC"]},
    "searched and sorted": {"filter": "params.G = '8' AND metrics.reward > 0.3", "order_by": ["metrics.heldout DESC"]},
}
"""By the name of the page of Cohort's that shows the same."""

_RUNS = """
    INSERT INTO runs (run_uuid, name, source_type, source_name, entry_point_name, user_id, status, start_time, end_time,
                      source_version, lifecycle_stage, artifact_uri, experiment_id)
    SELECT md5(number::text), 'run-' || number, source_type, source_name, entry_point_name, user_id, 'FINISHED',
           1700000000000 + number, 1700000000000 + number, source_version, lifecycle_stage, artifact_uri, experiment_id
    FROM runs, generate_series(1, %s) AS number WHERE run_uuid = %s
"""
_PARAMETERS = """
    INSERT INTO params (run_uuid, key, value)
    SELECT md5(number::text), name, value FROM generate_series(1, %s) AS number, LATERAL (
        SELECT 'G' AS name, (ARRAY['4', '8', '16', '32'])[1 + number %% 4] AS value
        UNION ALL SELECT 'lr', (ARRAY['1e-06', '5e-06', '1e-05'])[1 + number %% 3]
        UNION ALL SELECT 'beta', '0'
        UNION ALL SELECT 'parameter-' || place, 'value' FROM generate_series(4, %s) AS place
    ) AS given
"""
_METRICS = """
    INSERT INTO latest_metrics (run_uuid, key, value, timestamp, step, is_nan)
    SELECT md5(number::text), name, value, 1700000000000, 24, false FROM generate_series(1, %s) AS number, LATERAL (
        SELECT 'reward' AS name, abs(sin(number)) AS value
        UNION ALL SELECT 'heldout', (number * 7 %% 200) / 200.0
        UNION ALL SELECT 'metric-' || place, sin(number * place) FROM generate_series(3, %s) AS place
    ) AS measured
"""
_TAGS = """
    INSERT INTO tags (run_uuid, key, value)
    SELECT md5(number::text), 'mlflow.runName', 'run-' || number FROM generate_series(1, %s) AS number
"""


class MlflowSearch:
    """A server with so many runs, and a kept connection to it."""

    def __init__(self, server: MlflowServer) -> None:
        self._link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)

    def seconds(self, name: str) -> float | None:
        """Of one answer to the search with this name; None where MLflow has no such search."""
        if name not in SEARCHES:
            return None
        body = json.dumps({"experiment_ids": ["0"], "max_results": 50, **SEARCHES[name]})
        began = time.perf_counter()
        self._link.request("POST", "/api/2.0/mlflow/runs/search", body, {"Content-Type": "application/json"})
        answer = self._link.getresponse()
        content = answer.read()
        took = time.perf_counter() - began
        runs = json.loads(content).get("runs", [])
        if answer.status != 200 or not runs:
            raise RuntimeError(f"MLflow answered {answer.status} with {len(runs)} runs to {body}")
        return took


@contextmanager
def mlflow_search(folder: Path, postgres: Postgres, *, count: int) -> Iterator[MlflowSearch]:
    """With `count` runs."""
    with psycopg.connect(postgres.url, autocommit=True) as link:
        link.execute("CREATE DATABASE mlflow")
    server = MlflowServer(folder / "mlflow", database_url(postgres), free_port())
    try:
        server.start()
        made = server.call("runs/create", {"experiment_id": "0", "run_name": "made"})["run"]["info"]["run_id"]
        with psycopg.connect(server.url.replace("+psycopg2", ""), autocommit=True) as link:
            link.execute(_RUNS, (count, made))
            link.execute(_PARAMETERS, (count, PARAMETERS))
            link.execute(_METRICS, (count, SERIES))
            link.execute(_TAGS, (count,))
            link.execute("VACUUM (ANALYZE)")
        yield MlflowSearch(server)
    finally:
        server.stop()
