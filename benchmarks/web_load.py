"""A live run with many viewers: how long their polls take, and what a worker that reports the run has to wait next to
them. Prints one table, then a line per target.

    .venv/bin/python benchmarks/web_load.py [--viewers 200] [--seconds 60] [--step-seconds 3]
    .venv/bin/python benchmarks/web_load.py --part list [--runs 10000] [--mlflow]
    .venv/bin/python benchmarks/web_load.py --part series [--steps 1000000]
    .venv/bin/python benchmarks/web_load.py --part launch [--runs 10000]
    .venv/bin/python benchmarks/web_load.py --part follow
    .venv/bin/python benchmarks/web_load.py --part first-charts

The web server runs as `cohort up` starts it, over an embedded database that waits for the disk. The run has `--history`
steps. A worker sends a step's records (metrics and `--groups` groups of completions) every `--step-seconds` and a
heartbeat every 2.5 s, four times as often as workers do. The viewers are a process of their own
(sides/web_viewers.py); database, server, viewers and worker share this machine's cores.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "platform"), str(HERE / "sides")]

import launches  # noqa: E402
import live_page  # noqa: E402
import long_series  # noqa: E402
import psutil  # noqa: E402
import runs_list  # noqa: E402
from cohort_web import CohortWeb, free_port, signed_in, stock_maker  # noqa: E402
from embedded import database  # noqa: E402
from mlflow_search import mlflow_search  # noqa: E402
from mlflow_server import PEERS  # noqa: E402

PEOPLE = 20
"""Sessions that the viewers share."""
BEAT_SECONDS = 2.5
P95_MS, WORKER_P95_MS, GROWTH_MB = 500, 1000, 50


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--viewers", type=int, default=200)
    options.add_argument("--seconds", type=float, default=60)
    options.add_argument("--ramp", type=float, default=10, help="seconds within which the viewers come")
    options.add_argument("--step-seconds", type=float, default=3)
    options.add_argument("--history", type=int, default=300)
    options.add_argument("--groups", type=int, default=8)
    options.add_argument(
        "--part",
        choices=("run", "list", "series", "launch", "follow", "first-charts"),
        default="run",
        help="list: pages of many runs; series: a run of many steps; launch: the run form's answer; follow: a step from"
        " the worker's disk to the browser; first-charts: a run's page until its charts are drawn",
    )
    options.add_argument("--runs", type=int, default=10_000, help="of --part list and --part launch")
    options.add_argument("--steps", type=int, default=1_000_000, help="of --part series")
    options.add_argument("--rounds", type=int, default=40, help="requests of each kind, of both")
    options.add_argument("--mlflow", action="store_true", help="search as many runs in MLflow too (make bench-env)")
    chosen = options.parse_args()
    if chosen.mlflow and not (PEERS / "mlflow").is_file():
        options.error(f"{PEERS / 'mlflow'} is missing; run: make bench-env")
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if chosen.part != "run":
        return one_part(chosen)
    with database() as (folder, postgres), closing(CohortWeb(folder / "home", postgres.url, free_port())) as web:
        web.migrate()
        worker, given = prepare(web, history=chosen.history, groups=chosen.groups)
        web.start()
        given["version"] = ""
        memory: list[float] = []
        end = threading.Event()
        threads = [
            threading.Thread(target=worker.report, args=(chosen.step_seconds, end)),
            threading.Thread(target=worker.beat, args=(end,)),
            threading.Thread(target=_watch_memory, args=(web, memory, end)),
        ]
        for thread in threads:
            thread.start()
        numbers = map(str, (chosen.viewers, chosen.seconds, chosen.ramp))
        words = [sys.executable, str(HERE / "sides/web_viewers.py"), worker.url, *numbers]
        try:
            done = subprocess.run(words, input=json.dumps(given), stdout=subprocess.PIPE, text=True, check=True)
        finally:
            end.set()
            for thread in threads:
                thread.join()
    return report(json.loads(done.stdout), worker, memory)


def one_part(chosen: argparse.Namespace) -> int:
    with database() as (folder, postgres), closing(CohortWeb(folder / "home", postgres.url, free_port())) as web:
        web.migrate()
        match chosen.part:
            case "series":
                return long_series.main(web, steps=chosen.steps, rounds=chosen.rounds)
            case "launch":
                return launches.main(web, count=chosen.runs, rounds=chosen.rounds)
            case "follow":
                return live_page.follow(web, rounds=chosen.rounds)
            case "first-charts":
                return live_page.first_charts(web, rounds=chosen.rounds)
        with mlflow_search(folder, postgres, count=chosen.runs) if chosen.mlflow else nullcontext() as peer:
            return runs_list.main(web, count=chosen.runs, rounds=chosen.rounds, peer=peer)


def prepare(web: CohortWeb, *, history: int, groups: int) -> tuple["Worker", dict[str, Any]]:
    """The worker of a run that trains, with its history; what the viewers need to know."""

    from cohort.accounts.models import Membership, Role, User
    from cohort.nodes.services import node_create
    from cohort.runs.attempts import attempt_claim
    from tests.factories.worker import NODE

    maker = stock_maker()
    run = maker.launched("watched", preset="demo", optim={"steps": 100_000}, eval={"holdout": 4})
    node, _ = node_create(name="bench")
    attempt, token = attempt_claim(run_id=run.pk, node=node, info=NODE)
    cookies = []
    for number in range(PEOPLE):
        person = User.objects.create(username=f"viewer-{number}")
        Membership.objects.create(project=maker.project, user=person, role=Role.VIEWER)
        cookies.append(signed_in(person.username)[0])
    worker = Worker(f"http://127.0.0.1:{web.port}", attempt.pk, attempt.fence, token, groups)
    worker.prepare(attempt, history)
    at = f"/p/ours/runs/{run.pk}"
    return worker, {"cookies": cookies, "paths": {"live": f"{at}/live/", "series": f"{at}/series.json"}}


class Worker:
    """Reports one attempt over HTTP, as a worker's process does."""

    def __init__(self, url: str, attempt: int, fence: int, token: str, groups: int) -> None:
        self.url, self._fence, self._groups = url, fence, groups
        self._at = f"{url}/api/worker/v1/attempts/{attempt}"
        self._headers = {"Authorization": f"Bearer {token}", "X-Cohort-Fence": str(fence)}
        self._seq = self._step = 0
        self.batches: list[float] = []
        self.beats: list[float] = []
        self.faults: list[str] = []

    def prepare(self, attempt: Any, history: int) -> None:
        """What came before the viewers, by the same path but HTTP."""
        from cohort.ingest.batch import batch_ingest
        from tests.factories.worker import manifest, phase

        send = {"attempt_id": attempt.pk, "digest": attempt.token_digest, "fence": self._fence}
        batch_ingest(**send, body=self._packed([manifest(), phase("training", 100_000)]))
        for _ in range(history):
            batch_ingest(**send, body=self._packed(self._records()))

    def report(self, every: float, end: threading.Event) -> None:
        while not end.wait(every):
            body = self._packed(self._records())
            self._post("records", body, {"Content-Type": "application/zstd"}, self.batches)

    def beat(self, end: threading.Event) -> None:
        while not end.wait(BEAT_SECONDS):
            body = json.dumps({"fence": self._fence, "shipped_seq": self._seq, "spooled_bytes": 0}).encode()
            self._post("heartbeat", body, {"Content-Type": "application/json"}, self.beats)

    def _post(self, call: str, body: bytes, headers: dict[str, str], took: list[float]) -> None:
        request = urllib.request.Request(f"{self._at}/{call}", body, self._headers | headers)
        began = time.perf_counter()
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120) as answer:
                answer.read()
        except OSError as error:
            self.faults.append(f"{call}: {error}")
        took.append(time.perf_counter() - began)

    def _records(self) -> list[Any]:
        from grpo_core.records.types import StepMetrics
        from tests.factories.worker import group

        self._step += 1
        names = ("reward", "reward_std", "kl", "entropy", "loss", "grad_norm", "learning_rate", "frac_reward_zero_std")
        metrics = {name: 0.1234567 * (self._step % 97) / index for index, name in enumerate(names, start=1)}
        seconds = {"sample": 1.25, "reward": 0.25, "update": 1.5, "total": 3.0}
        made = [group(self._step).model_copy(update={"index": index}) for index in range(self._groups)]
        return [StepMetrics(step=self._step, metrics=metrics, seconds=seconds), *made]

    def _packed(self, bodies: Sequence[Any]) -> bytes:
        from tests.factories.worker import envelopes, packed

        lines = envelopes(bodies, first=self._seq + 1)
        self._seq += len(lines)
        return packed(lines)


def _watch_memory(web: CohortWeb, memory: list[float], end: threading.Event) -> None:
    """MB of the server's processes together, once a second."""
    while not end.wait(1):
        processes = [psutil.Process(web.pid), *psutil.Process(web.pid).children(recursive=True)]
        total = 0
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        memory.append(total / 1e6)


def report(seen: dict[str, Any], worker: Worker, memory: list[float]) -> int:
    statuses = {int(status): count for status, count in seen["statuses"].items()}
    print(f"{'':10} {'requests':>9} {'median, ms':>11} {'p95, ms':>8} {'longest, ms':>12}")
    rows = {"polls": seen["live"], "series": seen["series"], "batches": worker.batches, "heartbeats": worker.beats}
    for name, took in rows.items():
        ms = [1000 * each for each in took]
        print(f"{name:10} {len(ms):9,} {statistics.median(ms):11.1f} {_p95(ms):8.1f} {max(ms):12.1f}")
    print(f"statuses {statuses}, dropped {seen['dropped']}; the worker's faults: {worker.faults or 'none'}")
    # Caches and threads' buffers fill at first; what counts is whether it grows after that.
    settled, last = statistics.median(memory[len(memory) // 3 : len(memory) // 2]), statistics.median(memory[-5:])
    print(f"memory of the server: {memory[0]:.0f} MB, after a third {settled:.0f} MB, at the end {last:.0f} MB")
    errors = sum(count for status, count in statuses.items() if status >= 500 or status in (302, 403, 404))
    worst = max(_p95(worker.batches), _p95(worker.beats))
    results: list[tuple[str, float, float]] = [
        ("viewer_p95_ms", 1000 * _p95([*seen["live"], *seen["series"]]), P95_MS),
        ("viewer_errors", errors + seen["dropped"], 1),
        ("worker_p95_ms", 1000 * worst, WORKER_P95_MS),
        ("worker_faults", len(worker.faults), 1),
        ("memory_growth_mb", last - settled, GROWTH_MB),
    ]
    for name, value, most in results:
        print(f"RESULT {name} {value:.1f} {most} {'ok' if value < most else 'miss'}")
    return 0


def _p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


if __name__ == "__main__":
    os.environ.pop("DJANGO_SETTINGS_MODULE", None)
    sys.exit(main())
