"""How long the comparison of many runs takes, on a warm server with the embedded database: the page, one metric of all
runs and one suite on the same items, wall time of the whole middleware stack; with --browser until every curve is drawn
in Chromium. Prints one line for each, the median of `--times`.

    .venv/bin/python benchmarks/compare_runs.py [--runs 100] [--steps 500] [--items 200] [--browser]
"""

import argparse
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "platform"), str(HERE / "sides")]

from embedded import database, platform_environment  # noqa: E402

METRICS = ("reward", "rewards/answer/mean", "frac_informative", "kl", "completions/mean_length", "entropy", "loss")
FURTHER = 30
"""Metrics of a step besides those, so that a row is as wide as a real one."""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=100)
    options.add_argument("--steps", type=int, default=500)
    options.add_argument("--items", type=int, default=200)
    options.add_argument("--times", type=int, default=7)
    options.add_argument("--browser", action="store_true")
    chosen = options.parse_args()
    with database() as (folder, postgres):
        (folder / "home").mkdir()
        os.environ.update(platform_environment(folder / "home", postgres.url))
        measure(chosen)
    return 0


def measure(chosen: argparse.Namespace) -> None:
    import django

    django.setup()
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    from cohort.accounts.models import Project, User
    from cohort.base.environment import environment
    from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
    from cohort.evidence import keys
    from tests.factories import stock
    from tests.factories.runs import Maker

    settings.ALLOWED_HOSTS = ["*"]
    call_command("migrate", interactive=False, verbosity=0)
    call_command("collectstatic", interactive=False, verbosity=0)
    keys.generate(environment().log_name).write(environment().signing_key_path)
    environment().models_folder.mkdir(parents=True)
    stock.people()
    stock.catalog()
    people = Project.objects.get(slug="ours"), User.objects.get(username="alice")
    catalog = BaseModel.objects.get(), PromptDataset.objects.get(name="additions"), VerifierVersion.objects.get()
    query = filled(Maker(*people, *catalog), chosen)
    client = Client()
    client.force_login(people[1], backend="django.contrib.auth.backends.ModelBackend")
    print(f"{chosen.runs} runs of {chosen.steps} steps with {len(METRICS) + FURTHER} metrics, {chosen.items} items")

    def line(name: str, address: str) -> None:
        client.get(address)
        spent = [_seconds(lambda: client.get(address)) for _ in range(chosen.times)]
        busy = time.process_time()
        client.get(address)
        busy = time.process_time() - busy
        with CaptureQueriesContext(connection) as captured:
            answer = client.get(address)
        assert answer.status_code == 200, answer.status_code
        took, size = 1000 * statistics.median(spent), len(answer.content) / 1e3
        words = f"{took:8.0f} ms, web process {1000 * busy:6.0f} ms {len(captured):4} queries {size:8.0f} kB"
        print(f"{name:<24}{words}", flush=True)

    base = "/p/ours/runs/compare/"
    line("page", f"{base}?{query}")
    for axis in ("step", "time", "tokens"):
        line(f"one metric by {axis}", f"{base}series.json?{query}&metric=reward&x={axis}")
    line("one suite, paired", f"{base}suite/?{query}&suite=heldout")
    line("items of it", f"{base}answers/?{query}&suite=heldout")
    if chosen.browser:
        in_browser(client.cookies[settings.SESSION_COOKIE_NAME].value, f"{base}?{query}", chosen.times)


def filled(maker: object, chosen: argparse.Namespace) -> str:
    """The query of a comparison of all runs that were made: ten settings, each with seeds."""
    from django.db import connection, transaction
    from django.utils import timezone

    from cohort.ingest.buckets import buckets_store
    from cohort.runs.models import EvalItem, EvalResult, Run, StepMetric
    from grpo_core.records.types import StepMetrics

    chance, now, pks = random.Random(0), timezone.now(), []
    for number in range(chosen.runs):
        settings = {"seed": number // 10, "optim": {"lr": 1e-6 * (1 + number % 10), "steps": chosen.steps}}
        with transaction.atomic():
            run = maker.run(f"run {number}", state="training", algorithm={"kl": {"coef": 0.04}}, **settings)
            attempt = maker.attempt(run)
            names = [*METRICS, *(f"further/{at}" for at in range(FURTHER))]
            steps = [
                {name: chance.random() for name in names} | {"num_tokens": 1e4 * step}
                for step in range(1, chosen.steps + 1)
            ]
            seconds = {"sample": 0.9, "update": 0.5, "other": 0.1, "total": 1.5}
            place = {"attempt": attempt, "run": run}
            StepMetric.objects.bulk_create(
                StepMetric(**place, seq=step, step=step, at=now, metrics=metrics, seconds=seconds)
                for step, metrics in enumerate(steps, 1)
            )
            rows = [StepMetrics(step=step, metrics=row, seconds=seconds) for step, row in enumerate(steps, 1)]
            with connection.connection.cursor() as cursor:
                buckets_store(cursor, attempt_id=attempt.pk, run_id=run.pk, steps=rows)
            for phase, share in (("before", 0.3), ("after", 0.4 + number % 10 / 20)):
                seq = chosen.steps + 1 + (chosen.items + 1) * (phase == "after")
                scores = [float(chance.random() < share) for _ in range(chosen.items)]
                words = {"phase": phase, "suite": "heldout"}
                texts = {"prompt": "what is 1 + 1?", "answer": "2", "completion": "<answer>2</answer>"}
                items = [{"seq": seq + at, "problem_id": f"p{at}", "score": score} for at, score in enumerate(scores)]
                same = {**place, **words, **texts, "truncated": False, "tokens": 9}
                EvalItem.objects.bulk_create(EvalItem(**same, **item) for item in items)
                totals = {"problems": len(scores), "correct": sum(scores), "truncated": 0, "errors": 0}
                totals |= {"mean_tokens": 9.0, "seconds": 1.0, "protocol": {"temperature": 0.0, "items_digest": "a"}}
                EvalResult.objects.create(**place, **words, **totals, seq=seq + chosen.items, at=now)
            Run.objects.filter(pk=run.pk).update(step=chosen.steps, first_metrics=steps[0], latest_metrics=steps[-1])
        pks.append(run.pk)
    return "&".join(f"run={pk}" for pk in pks)


def _seconds(do: Callable[[], object]) -> float:
    begun = time.perf_counter()
    do()
    return time.perf_counter() - begun


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def in_browser(session: str, address: str, times: int) -> None:
    """From the request to the last curve drawn, of the five that the page has at first."""
    from django.conf import settings
    from django.core.wsgi import get_wsgi_application

    from tests.browser import chromium

    server = make_server("127.0.0.1", 0, get_wsgi_application(), _Server, _Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{server.server_port}"
    with chromium() as browser:
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": session, "url": here}])
        page = context.new_page()

        def opened() -> None:
            page.goto(here + address, wait_until="commit")
            page.locator("#curves[data-ready]").wait_for(timeout=60_000)

        opened()
        spent = [_seconds(opened) for _ in range(times)]
    server.shutdown()
    print(f"{'page drawn in Chromium':<28}{1000 * statistics.median(spent):8.0f} ms", flush=True)


if __name__ == "__main__":
    sys.exit(main())
