"""What a box costs: launches one after the other, and runs a second with four workers, as many as a reward has unless
told otherwise. Prints one table, then a line per target.

    .venv/bin/python benchmarks/sandbox.py [--launches 200] [--rounds 5]

A launch is `Sandbox.run` of an empty program, from the call to the return, so with the end of the box and all that is
cleaned up after it. Each figure is the median over the rounds. Other work on the machine changes these figures: the
load average is told with them.
"""

import argparse
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.path.remove(str(HERE))  # this file is not the package `sandbox` of anybody

from grpo_core.errors import SandboxError  # noqa: E402
from grpo_core.sandbox import Sandbox, find_sandbox, self_test  # noqa: E402

LAUNCH_P95_MS, RUNS_A_SECOND, WORKERS = 25.0, 70.0, 4


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--launches", type=int, default=200)
    options.add_argument("--rounds", type=int, default=5)
    chosen = options.parse_args()
    try:
        sandbox = find_sandbox(self_test())
    except SandboxError as error:
        print(f"no figures: {error}", file=sys.stderr)
        return 1
    own = _cpu()
    for _ in range(20):
        sandbox.run("")
    cores = len(os.sched_getaffinity(0))
    print(f"{sandbox.report.words}, Python {sys.version.split()[0]}, {cores} cores, {chosen.launches} launches a round")
    print(f"{'round':>5} {'median, ms':>11} {'p95, ms':>8} {f'runs/s, {WORKERS} workers':>18} {'load':>6}")
    rounds = []
    for number in range(1, chosen.rounds + 1):
        load = os.getloadavg()[0]
        one = (*launches(sandbox, chosen.launches), throughput(sandbox, chosen.launches))
        rounds.append(one)
        print(f"{number:5} {one[0]:11.1f} {one[1]:8.1f} {one[2]:18.0f} {load:6.2f}", flush=True)
    sandbox.close()  # only then is counted here what the keeper and its boxes used
    cpu = (_cpu() - own) * 1000 / (2 * chosen.launches * chosen.rounds + 20)
    median, p95, rate = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(f"{'all':>5} {median:11.1f} {p95:8.1f} {rate:18.0f} {os.getloadavg()[0]:6.2f}")
    print(f"processor time of a run, all of it: {cpu:.1f} ms, so {cores * 1000 / cpu:.0f} runs/s if nothing else ran")
    for line in results(p95, rate):
        print(line)
    return 0


def _cpu() -> float:
    """Seconds of this process and of all that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def launches(sandbox: Sandbox, count: int) -> tuple[float, float]:
    """(median, 95th percentile) of single launches in milliseconds."""
    taken = []
    for _ in range(count):
        begun = time.perf_counter()
        sandbox.run("")
        taken.append((time.perf_counter() - begun) * 1000)
    return statistics.median(taken), statistics.quantiles(taken, n=20, method="inclusive")[18]


def throughput(sandbox: Sandbox, count: int) -> float:
    """Runs a second of all workers together."""
    begun = time.perf_counter()
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(lambda _: sandbox.run(""), range(count)))
    return count / (time.perf_counter() - begun)


def results(p95: float, rate: float) -> list[str]:
    return [
        f"RESULT sandbox_launch_p95_ms {p95:.1f} {LAUNCH_P95_MS:g} {'ok' if p95 <= LAUNCH_P95_MS else 'miss'}",
        f"RESULT sandbox_runs_per_second {rate:.0f} {RUNS_A_SECOND:g} {'ok' if rate >= RUNS_A_SECOND else 'miss'}",
    ]


if __name__ == "__main__":
    sys.exit(main())
