"""Points per second into Cohort and into an MLflow server, both with two workers on the same embedded PostgreSQL, in
turn in one run. Prints one table, then a line per target.

    make bench-env && .venv/bin/python benchmarks/mlflow.py [--stored 10000000] [--rounds 3]

A point is one metric's value at one step. First `--stored` points are put into each database by SQL, spread over runs
of 10,000 steps with ten metrics, the writers' own runs among them. Then writers in processes of their own, each with a
run and a kept connection of its own, send prepared batches: Cohort's as its worker does (zstd NDJSON of whole steps,
with the steps' seconds beside the ten metrics), MLflow's by runs/log-batch, which takes at most 1,000 points. The
database waits for the disk on every commit.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "platform"), str(HERE / "sides")]
sys.path.remove(str(HERE))  # or `mlflow` would be this file

import psycopg  # noqa: E402
from cohort_web import METRICS, CohortWeb, free_port  # noqa: E402
from embedded import database  # noqa: E402
from mlflow_server import PEERS, MlflowServer, database_url  # noqa: E402

WRITERS = (1, 4)
BATCHES = {10: 120, 100: 60, 1000: 20}
"""Points in a batch → batches of each writer in a round."""
TARGETS = {(1000, 1): 10.0, (1000, 4): 10.0, (10, 1): 10.0}
_STORED = """
    INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan)
    SELECT name, sin(step::float * place), 1700000000000 + step, run_uuid, step, false
    FROM unnest(%s::text[]) AS run_uuid, generate_series(1, %s) AS step,
         unnest(%s::text[]) WITH ORDINALITY AS m (name, place)
"""
_NEWEST = """
    INSERT INTO latest_metrics (key, value, timestamp, step, is_nan, run_uuid)
    SELECT name, 0, 1700000000000 + %s, %s, false, run_uuid
    FROM unnest(%s::text[]) AS run_uuid, unnest(%s::text[]) AS name
"""


class Mlflow(MlflowServer):
    """With runs that writers send points of."""

    def __init__(self, folder: Path, database_url: str, port: int) -> None:
        super().__init__(folder, database_url, port)
        self.runs: list[str] = []
        self._steps: dict[int, int] = {}

    def prepare(self, *, points: int, writers: int, steps: int) -> None:
        """Runs through MLflow's own API, history by SQL."""
        for number in range(max(writers, -(-points // (steps * len(METRICS))))):
            created = self.call("runs/create", {"experiment_id": "0", "run_name": f"run {number}"})
            self.runs.append(created["run"]["info"]["run_id"])
        with psycopg.connect(self.url.replace("+psycopg2", ""), autocommit=True) as link:
            link.execute(_NEWEST, (steps, steps, self.runs, list(METRICS)))
            for first in range(0, len(self.runs), 10):
                some = self.runs[first : first + 10]
                link.execute(_STORED, (some, steps, list(METRICS)))
                stored = (first + len(some)) * steps * len(METRICS)
                print(f"  MLflow: {stored:,} points stored", file=sys.stderr, flush=True)
            link.execute("VACUUM (ANALYZE)")
        self._steps = dict.fromkeys(range(1, writers + 1), steps)

    def target(self, writer: int) -> dict[str, object]:
        return {
            "host": "127.0.0.1",
            "port": self.port,
            "path": "/api/2.0/mlflow/runs/log-batch",
            "headers": {"Content-Type": "application/json"},
        }

    def batch(self, writer: int, points: int) -> bytes:
        metrics = []
        for _ in range(points // len(METRICS)):
            step = self._steps[writer] = self._steps[writer] + 1
            for place, name in enumerate(METRICS, start=1):
                value = 0.1234567 * (step % 97) / place
                metrics.append({"key": name, "value": value, "timestamp": 1_700_000_000_000 + step, "step": step})
        return json.dumps({"run_id": self.runs[writer - 1], "metrics": metrics}).encode()


def measure(
    folder: Path,
    side: CohortWeb | Mlflow,
    writers: int,
    points: int,
    batches: int,
    *,
    again: bool = False,
    ack_at_once: bool = False,
) -> tuple[float, list[float], list[float]]:
    """(points per second of all writers together, seconds of each new batch, of each one sent again)."""
    started = []
    for writer in range(1, writers + 1):
        place = folder / f"writer-{writer}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        (place / "target.json").write_text(json.dumps({**side.target(writer), "ack_at_once": ack_at_once}))
        for number in range(batches):
            (place / f"batch-{number:05d}").write_bytes(side.batch(writer, points))
        words = [sys.executable, "-S", str(HERE / "sides/post_batches.py"), str(place), *(["--again"] if again else [])]
        started.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = []
    for process in started:
        out, _ = process.communicate()
        if process.returncode != 0:
            raise RuntimeError("a writer was refused; what the server said stands above")
        said.append(json.loads(out))
    seconds = max(one["ended"] for one in said) - min(one["began"] for one in said)
    new = [took for one in said for took in one["new"]]
    return writers * batches * points / seconds, new, [took for one in said for took in one["again"]]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--stored", type=int, default=10_000_000, help="points in each database before the first batch"
    )
    options.add_argument("--stored-mlflow", type=int, help="other number for MLflow, where the disk or time is short")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--only", choices=("cohort",), help="leave MLflow out, to look at one side")
    chosen = options.parse_args()
    if not chosen.only and not (PEERS / "mlflow").is_file():
        print(f"{PEERS / 'mlflow'} is missing; run: make bench-env", file=sys.stderr)
        return 2
    with database("--shared_buffers=1GB", "--max_wal_size=4GB") as (folder, postgres), ExitStack() as servers:
        with psycopg.connect(postgres.url, autocommit=True) as link:
            assert link.execute("SHOW synchronous_commit").fetchone() == ("on",)
            assert link.execute("SHOW fsync").fetchone() == ("on",)
            link.execute("CREATE DATABASE mlflow")
        cohort = CohortWeb(folder / "home", postgres.url, free_port())
        cohort.prepare(points=chosen.stored, writers=max(WRITERS))
        sides: dict[str, CohortWeb | Mlflow] = {"Cohort": cohort}
        cohort.start()
        servers.callback(cohort.close)
        if not chosen.only:
            mlflow = Mlflow(folder / "mlflow", database_url(postgres), free_port())
            servers.callback(mlflow.stop)
            mlflow.start()
            stored = chosen.stored if chosen.stored_mlflow is None else chosen.stored_mlflow
            mlflow.prepare(points=stored, writers=max(WRITERS), steps=10_000)
            sides["MLflow 3.17.2"] = mlflow
        return report(folder, sides, chosen.rounds)


def report(folder: Path, sides: dict[str, CohortWeb | Mlflow], rounds: int) -> int:
    for side in sides.values():  # first calls open connections and fill caches
        measure(folder, side, max(WRITERS), 100, 10)
    rates: dict[tuple[str, int, int], list[float]] = {}
    took: dict[tuple[str, int, int], list[float]] = {}
    for _ in range(rounds):
        for points, batches in BATCHES.items():
            for writers in WRITERS:
                for name, side in sides.items():
                    # The slower side sends a quarter of the batches, so that a round does not take minutes.
                    count = batches if name == "Cohort" else batches // 4
                    rate, new, _ = measure(folder, side, writers, points, count)
                    rates.setdefault((name, points, writers), []).append(rate)
                    took.setdefault((name, points, writers), []).extend(new)
    quick = {
        (name, writers): [
            measure(folder, side, writers, 10, 120 if name == "Cohort" else 30, ack_at_once=True)[0]
            for _ in range(rounds)
        ]
        for writers in WRITERS
        for name, side in sides.items()
    }
    again = [measure(folder, sides["Cohort"], 1, 1000, 20, again=True) for _ in range(rounds)]
    print(
        f"{'':14} {'points':>7} {'writers':>8} {'ms/batch, median':>17} {'points/s, median of rounds':>27} {'ratio':>6}"
    )
    results = []
    for points in BATCHES:
        for writers in WRITERS:
            rate = {name: statistics.median(rates[name, points, writers]) for name in sides}
            for name in sides:
                ms = 1000 * statistics.median(took[name, points, writers])
                ratio = rate["Cohort"] / rate[name]
                print(f"{name:14} {points:7,} {writers:8} {ms:17.2f} {rate[name]:27,.0f} {ratio:6.1f}")
                if name != "Cohort" and (points, writers) in TARGETS:
                    results.append((points, writers, ratio))
    print("batches of 10 from a client that acknowledges every packet at once, which MLflow's own does not:")
    for writers in WRITERS:
        rate = {name: statistics.median(quick[name, writers]) for name in sides}
        for name in sides:
            print(f"{name:14} {10:7,} {writers:8} {'':17} {rate[name]:27,.0f} {rate['Cohort'] / rate[name]:6.1f}")
    new = statistics.median(second for _, first, _ in again for second in first)
    repeated = statistics.median(second for _, _, second_time in again for second in second_time)
    print(f"a batch of 1,000 points: new {1000 * new:.2f} ms, sent again {1000 * repeated:.2f} ms")
    for points, writers, ratio in results:
        target = TARGETS[points, writers]
        name = f"points_per_second_against_mlflow_{points}_a_batch_{writers}_writer{'s' if writers > 1 else ''}"
        print(f"RESULT {name} {ratio:.1f} {target} {'ok' if ratio >= target else 'miss'}")
    print(f"RESULT batch_sent_again_against_new {repeated / new:.2f} 1.0 {'ok' if repeated <= new else 'miss'}")
    return 0


if __name__ == "__main__":
    began = time.monotonic()
    code = main()
    print(f"({time.monotonic() - began:.0f} s in all)", file=sys.stderr)
    sys.exit(code)
