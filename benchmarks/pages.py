"""What a request for a page of a live run costs the web process: processor time of the whole middleware stack, with the
embedded database, median of 25. Prints one line for each kind of request; those named "changed" follow a new step.

    .venv/bin/python benchmarks/pages.py [--steps 300] [--events 2000]
"""

import argparse
import os
import random
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "platform"), str(HERE / "sides")]

from embedded import database, platform_environment  # noqa: E402

TIMES = 25


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--events", type=int, default=2000)
    chosen = options.parse_args()
    with database() as (folder, postgres):
        (folder / "home").mkdir()
        os.environ.update(platform_environment(folder / "home", postgres.url))
        measure(chosen.steps, chosen.events)
    return 0


def measure(steps: int, events: int) -> None:
    import django

    django.setup()
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext
    from django.utils import timezone

    from cohort.accounts.models import Project, User
    from cohort.base.environment import environment
    from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
    from cohort.evidence import keys
    from cohort.lab.models import LabJob
    from cohort.runs.models import RunEvent
    from tests.factories import stock
    from tests.factories.runs import Maker, add_checkpoint, add_evaluation, add_group, add_steps

    settings.ALLOWED_HOSTS = ["*"]
    call_command("migrate", interactive=False, verbosity=0)
    call_command("collectstatic", interactive=False, verbosity=0)
    keys.generate(environment().log_name).write(environment().signing_key_path)
    environment().models_folder.mkdir(parents=True)
    stock.people()
    stock.catalog()
    people = Project.objects.get(slug="ours"), User.objects.get(username="alice")
    catalog = BaseModel.objects.get(), PromptDataset.objects.get(name="additions"), VerifierVersion.objects.get()
    maker, chance = Maker(*people, *catalog), random.Random(0)
    run = maker.run(state="training", preset="dapo", optim={"steps": 10 * steps})
    attempt = maker.attempt(run)

    def numbers() -> dict[str, float]:
        names = ("reward", "reward_std", "frac_reward_zero_std", "entropy", "kl", "loss", "completions/mean_length")
        return {name: chance.random() for name in names}

    for phase, mean in (("before", 0.3), ("after", 0.5)):
        for suite in ("held-out", "algebra", "code"):
            add_evaluation(attempt, phase, [float(chance.random() < mean) for _ in range(1000)], suite=suite)
    add_steps(attempt, [numbers() for _ in range(steps)])
    for index in range(24):
        add_group(attempt, [1.0, 0.0, 1.0, 0.0], step=steps - index // 8, index=index % 8)
    for step in range(0, steps, 50):
        add_checkpoint(attempt, step)
    now = timezone.now()
    RunEvent.objects.bulk_create(
        RunEvent(run=run, attempt=attempt, seq=10**6 + n, at=now, actor="trainer", kind="warning", message=f"event {n}")
        for n in range(events)
    )
    wanted = {"project": people[0], "kind": "estimate", "spec": stock.R1_EXACT, "state": "waiting"}
    job = LabJob.objects.create(**wanted, created_by=people[1])

    viewer = Client()
    viewer.force_login(User.objects.get(username="bob"), backend="django.contrib.auth.backends.ModelBackend")
    other = Client()
    other.cookies.load(viewer.cookies.output(header=""))
    clients = [viewer]
    base = f"/p/ours/runs/{run.pk}/"

    def beat() -> None:
        """The node and the worker live throughout."""
        attempt.heartbeat_at = timezone.now()
        attempt.save(update_fields=["heartbeat_at"])

    def step() -> None:
        add_steps(attempt, [numbers()], first=run.step + 1)

    def poll(page: str) -> str:
        found = re.search(r'hx-get="([^"]*[?&](?:amp;)?v=[^"]*)"', clients[0].get(page).content.decode())
        assert found, page
        return found[1].replace("&amp;", "&")

    def line(name: str, address: Callable[[], str], *, change: Callable[[], None] = lambda: None) -> None:
        spent, statuses, sizes = [], set(), set()
        for _ in range(TIMES):
            beat()
            wanted = address()
            change()
            begun = time.process_time()
            answer = clients[0].get(wanted)
            spent.append(1000 * (time.process_time() - begun))
            statuses.add(answer.status_code)
            sizes.add(len(answer.content) if not answer.streaming else sum(map(len, answer)))
        wanted = address()
        change()
        with CaptureQueriesContext(connection) as captured:
            clients[0].get(wanted)
        codes = "/".join(map(str, sorted(statuses)))
        print(f"{name:<32}{statistics.median(spent):8.1f} ms {len(captured):4} queries   {codes}", flush=True)

    last = run.step
    line("overview, nothing new", lambda: poll(base))
    line("overview, changed", lambda: poll(base), change=step)

    def seen_by_another() -> None:
        step()
        other.get(poll(base).replace("v=", "v=0"))

    line("overview, changed, next viewer", lambda: poll(base), change=seen_by_another)
    line("groups tab, nothing new", lambda: poll(f"{base}groups/"))
    line("groups tab, changed", lambda: poll(f"{base}groups/"), change=step)
    epoch = clients[0].get(f"{base}series.json").json()
    line("series.json, nothing new", lambda: f"{base}series.json?after={run.step}&epoch={epoch['epoch']}")
    line("series.json, one step", lambda: f"{base}series.json?after={run.step - 1}&epoch={epoch['epoch']}")
    line("series.json, whole", lambda: f"{base}series.json")
    for tab in ("", "statements/", "events/", "evaluations/", "attempts/", "logs/", "config/", "groups/"):
        line(tab or "overview page", lambda tab=tab: base + tab)
    line("runs, nothing new", lambda: poll("/p/ours/runs/"))
    line("runs, changed", lambda: poll("/p/ours/runs/"), change=step)
    line("queue, nothing new", lambda: poll("/p/ours/queue/"))
    line("queue, changed", lambda: poll("/p/ours/queue/"), change=step)
    line("counts", lambda: "/p/ours/counts/")
    line("lab job, nothing new", lambda: poll(f"/p/ours/lab/jobs/{job.pk}/"))
    assert run.step > last


if __name__ == "__main__":
    sys.exit(main())
