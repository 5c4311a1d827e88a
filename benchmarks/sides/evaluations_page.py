"""Gives the run that seal_run.py made its suites, and looks at its page: one step of benchmarks/evaluations.py."""

import argparse
import random
import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE.parent.parent / "platform")]

import django  # noqa: E402

django.setup()

from django.conf import settings  # noqa: E402
from django.test import Client  # noqa: E402

from cohort.accounts.models import User  # noqa: E402
from cohort.runs.models import Attempt, EvalItem, EvalResult  # noqa: E402
from tests.factories import sealed_run  # noqa: E402

LATER = 9


def evaluated(attempt: Attempt, suite: str, phase: str, scores: list[float], first: int) -> None:
    EvalItem.objects.bulk_create(
        EvalItem(
            attempt=attempt, run_id=attempt.run_id, seq=first + n, phase=phase, suite=suite, problem_id=f"p{n}",
            prompt="what is 1 + 7? " * 4, answer="8", completion="and so " * 40, score=score, truncated=False,
            tokens=60,
        )
        for n, score in enumerate(scores)
    )  # fmt: skip
    EvalResult.objects.create(
        attempt=attempt, run_id=attempt.run_id, seq=first + len(scores), at=sealed_run.AT, phase=phase, suite=suite,
        problems=len(scores), correct=sum(scores), truncated=0, errors=0, mean_tokens=60.0, seconds=9.0,
        protocol=sealed_run.PROTOCOL,
    )  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser()
    for name in ("suites", "items", "graded"):
        options.add_argument(f"--{name}", type=int, required=True)
    chosen = options.parse_args()
    attempt, chance, seq = Attempt.objects.get(), random.Random(0), 5 * 10**7
    for number in range(chosen.suites):
        for phase, mean in (("before", 0.5), ("after", 0.55)):
            graded = (min(1.0, max(0.0, chance.gauss(mean, 0.2))) for _ in range(chosen.items))
            right = (float(chance.random() < mean) for _ in range(chosen.items))
            evaluated(attempt, f"s{number}", phase, list(graded if number < chosen.graded else right), seq)
            seq += chosen.items + 1
    settings.ALLOWED_HOSTS = ["*"]
    client = Client()
    client.force_login(User.objects.get())
    seconds = []
    for _ in range(1 + LATER):
        begun = time.perf_counter()
        answer = client.get(f"/p/bench/runs/{attempt.run_id}/evaluations/")
        seconds.append(time.perf_counter() - begun)
        if answer.status_code != 200:
            raise RuntimeError(f"the page answered {answer.status_code}")
    print(f"first view {seconds[0]:.2f} s, later ones {statistics.median(seconds[1:]):.3f} s (median of {LATER})")


if __name__ == "__main__":
    main()
