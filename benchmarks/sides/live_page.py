"""The page of a live run in Chromium. `web_load.py --part follow`: from a step that a trainer writes into its run
folder, through the worker's shipping, to the page that shows it. `--part first-charts`: from the navigation to the
page, with a warm cache, until all charts in sight are drawn.

The folder is written as the trainer writes it, the records are shipped by the worker's own parts in a process of their
own (watched_worker.py), and the times are those of the browser's clock, which is this machine's.
"""

import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cohort_web import CohortWeb, signed_in, stock_maker

FOLLOW_P95_MS, CHARTS_P95_MS = 3000, 1000
BETWEEN_STEPS = (1.0, 6.0)
"""Seconds from one step to the next, drawn evenly, so that steps meet polls at every moment between two."""
HERE = Path(__file__).resolve().parent

# When each newest step was first shown: by the header, and as the last point of the chart of rewards.
_WATCH_STEPS = """
    window.shown = { header: {}, chart: {} };
    new MutationObserver(() => {
        const chart = document.querySelector('[data-chart="reward"] .plot')?.data?.[0]?.x?.at(-1);
        const header = document.getElementById("live-header")?.dataset.step;
        if (header !== undefined) shown.header[header] ??= Date.now();
        if (chart !== undefined) shown.chart[chart] ??= Date.now();
    }).observe(document, { subtree: true, childList: true, attributes: true });
"""
# Milliseconds from the start of the navigation to the frame after the last chart in sight was drawn.
_WATCH_CHARTS = """
    const look = () => {
        const panels = [...document.querySelectorAll("[data-chart]")].filter((panel) => {
            const { top, bottom, height } = panel.getBoundingClientRect();
            return height > 0 && top < innerHeight && bottom > 0;
        });
        const done = (panel) => panel.querySelector(".plot")?.data?.length > 0; // none while the page still comes
        const drawn = panels.length > 0 && panels.every(done);
        if (drawn) requestAnimationFrame(() => (window.drawn = [performance.now(), panels.length]));
        else requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
"""


def follow(web: CohortWeb, *, rounds: int) -> int:
    """`rounds`: steps whose way is measured."""
    chance, written = random.Random(1), {}
    with live_run(web, 300) as (trainer, address), browser_page(web, _WATCH_STEPS) as page:
        page.goto(address)
        page.wait_for_function("() => Object.keys(shown.chart).length > 0")
        for _ in range(rounds):
            time.sleep(chance.uniform(*BETWEEN_STEPS))
            began = time.time()
            written[trainer.step()] = began
        page.wait_for_function(
            "step => Object.keys(shown.chart).some((shown) => Number(shown) >= step)", arg=max(written)
        )
        shown = page.evaluate("shown")
    print(f"{'from disk to browser':28} {'steps':>6} {'median, ms':>11} {'p95, ms':>8} {'longest, ms':>12}")
    for name in ("header", "chart"):
        took = _delays(written, {int(step): at / 1000 for step, at in shown[name].items()})
        print(f"{name:28} {len(took):6} {statistics.median(took):11.0f} {_p95(took):8.0f} {max(took):12.0f}")
        result = "ok" if _p95(took) < FOLLOW_P95_MS else "miss"
        print(f"RESULT disk_to_{name}_p95_ms {_p95(took):.0f} {FOLLOW_P95_MS} {result}")
    return 0


def _delays(written: dict[int, float], shown: dict[int, float]) -> list[float]:
    """Milliseconds from each step's writing until it, or one after it, was shown."""
    return [1000 * (min(at for later, at in shown.items() if later >= step) - began) for step, began in written.items()]


def first_charts(web: CohortWeb, *, rounds: int) -> int:
    with live_run(web, 1000) as (_, address), browser_page(web, _WATCH_CHARTS) as page:
        took, counts = [], set()
        for number in range(rounds + 3):
            page.goto("about:blank")
            page.goto(address)
            page.wait_for_function("() => window.drawn !== undefined")
            milliseconds, count = page.evaluate("drawn")
            if number >= 3:
                took.append(milliseconds)
                counts.add(count)
    print(f"{'charts of 1,000 steps':28} {'charts':>6} {'median, ms':>11} {'p95, ms':>8} {'longest, ms':>12}")
    many = "/".join(map(str, sorted(counts)))
    print(f"{'first view drawn':28} {many:>6} {statistics.median(took):11.0f} {_p95(took):8.0f} {max(took):12.0f}")
    result = "ok" if _p95(took) < CHARTS_P95_MS else "miss"
    print(f"RESULT first_charts_p95_ms {_p95(took):.0f} {CHARTS_P95_MS} {result}")
    return 0


class Trainer:
    """Writes a run's folder as a trainer does."""

    def __init__(self, folder: Path) -> None:
        from grpo_core.files.run_folder import RunDir
        from tests.factories.worker import manifest, phase

        self._folder, self._chance, self._step = RunDir.create(folder, spool=True), random.Random(7), 0
        for record in (manifest(), phase("training", 100_000)):
            self._folder.append(record)
        self._folder.commit()

    def step(self) -> int:
        """Write the next step, to the disk; its number."""
        from grpo_core.records.types import StepMetrics
        from tests.factories.series import step_numbers
        from tests.factories.worker import group

        self._step += 1
        seconds = {"sample": 1.6, "reward": 0.2, "update": 1.0, "other": 0.2, "total": 3.0}
        metrics = step_numbers(self._step, self._chance)
        for record in (StepMetrics(step=self._step, metrics=metrics, seconds=seconds), group(self._step)):
            self._folder.append(record)
        self._folder.commit()
        return self._step


@contextmanager
def live_run(web: CohortWeb, history: int) -> Iterator[tuple[Trainer, str]]:
    """(the trainer of a run that has so many steps, address of the run's page); a worker ships what it writes."""
    from django.db import connection

    from cohort.nodes.services import node_create
    from cohort.runs.attempts import attempt_claim
    from tests.factories.worker import NODE

    run = stock_maker().launched("watched", preset="demo", optim={"steps": 100_000}, eval={"holdout": 4})
    attempt, token = attempt_claim(run_id=run.pk, node=node_create(name="bench")[0], info=NODE)
    folder = web.home / "run"
    trainer = Trainer(folder)
    for _ in range(history):
        trainer.step()
    web.start()
    words = [f"http://127.0.0.1:{web.port}", str(attempt.pk), token, str(folder)]
    worker = subprocess.Popen(
        [sys.executable, str(HERE / "watched_worker.py"), *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE.parents[1],
    )  # fmt: skip
    try:
        while worker.poll() is None:
            run.refresh_from_db(fields=["step"])
            if run.step == history:
                break
            time.sleep(0.2)
        else:
            raise RuntimeError(f"the worker ended with {worker.returncode} before it had sent {history} steps")
        connection.close()
        yield trainer, f"http://127.0.0.1:{web.port}/p/ours/runs/{run.pk}/"
    finally:
        worker.communicate("stop\n")


@contextmanager
def browser_page(web: CohortWeb, script: str) -> Iterator[Any]:
    """A page of Chromium that is signed in as a viewer and runs the script at each start. With a profile on disk, as
    people's browsers have: in a window without one Chromium compiles plotly anew each time, for a second."""
    from django.conf import settings
    from playwright.sync_api import sync_playwright

    from tests.browser import ARGUMENTS

    url, session = f"http://127.0.0.1:{web.port}", signed_in("bob")[0]
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            web.home / "browser",
            executable_path=shutil.which("chromium"),
            args=ARGUMENTS,
            viewport={"width": 1440, "height": 900},
        )
        context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": session, "url": url}])
        context.add_init_script(script)
        yield context.new_page()
        context.close()


def _p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]
