"""REINFORCE, RLOO, GRPO, PPO and TRPO on one task, from one model, with equal samples: what each reaches, what it
takes, and how noisy its gradient is. Prints one table, then a line per target.

    .venv/bin/python benchmarks/methods.py [--seeds 5] [--steps 24] [--batches 32] [--cold 120] [--jobs 1] [--tune]

The task: the demo's two-digit additions from its cold-started model of 0.4 million weights, fp32 on two threads; a
step samples 8 prompts × 8 completions of at most 64 tokens. Every method is its preset, with its paper's advantages,
loss, KL penalty and passes over a batch. How far a step goes has no number that means the same in all: `--tune` prints
what each method reaches with three of them (RATES), on seeds from 100 on, which are not among those that count. Each
run is a process of its own, the methods in turn; with more jobs than one, seconds are those of processes that share
the machine.

heldout   share of the 512 held-out problems that the trained policy answers right, sampled once at temperature 1; the
          line above the methods has that of the policy before training
last      mean training reward of the last ten steps; mean: of all samples that it saw
s         seconds of the steps
models    alive in memory after the last update, and how many of them are trained
MiB       weights, gradients and optimiser states; peak: of the process above where it began, activations included
noise     trace of the covariance of the first gradient over its mean's squared norm, over independent batches
KL        of the trained policy from the start, in nats per token, on its own completions

Figures are means over the seeds with Student's 95 % interval; sizes and noise are medians and one measurement.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[1:1] = [str(HERE.parent)]

from grpo_core.cli.main import OPENMP_POLICY  # noqa: E402
from grpo_core.data.arithmetic import demo_split, write_jsonl  # noqa: E402
from grpo_core.stats.quantiles import student_t  # noqa: E402
from grpo_core.trainer.cold_start import Recipe, cold_start  # noqa: E402

METHODS = {"reinforce": "REINFORCE", "rloo": "RLOO", "grpo": "GRPO", "ppo": "PPO", "trpo": "TRPO"}
RATES = {
    "reinforce": (1e-4, 3e-4, 1e-3),
    "rloo": (1e-4, 3e-4, 1e-3),
    "grpo": (1e-4, 3e-4, 1e-3),
    "ppo": (1e-4, 3e-4, 1e-3),
    "trpo": (0.001, 0.003, 0.01),
}
"""Learning rates that are tried; of TRPO, bounds δ of the divergence."""
CHOSEN = {"reinforce": 3e-4, "rloo": 3e-4, "grpo": 3e-4, "ppo": 3e-4, "trpo": 0.01}
MODELS = {"reinforce": 1, "rloo": 2, "grpo": 2, "ppo": 3, "trpo": 1}
"""Models that each should hold: the policy, a reference where the preset has a KL penalty, PPO's critic."""
TUNED_ON = (100, 101)

Figures = dict[str, float]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--steps", type=int, default=24)
    options.add_argument("--batches", type=int, default=32, help="gradients that the noise is measured on")
    options.add_argument("--cold", type=int, default=Recipe().steps, help="supervised steps of the base model")
    options.add_argument("--folder", type=Path, help="where model and problems are, or are made, to be used again")
    options.add_argument("--jobs", type=int, default=1, help="processes side by side")
    options.add_argument("--tune", action="store_true", help="print what each of the rates reaches, and end")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as made, ThreadPoolExecutor(chosen.jobs) as jobs:
        folder = chosen.folder or Path(made)
        cold_start(folder / "model", Recipe(steps=chosen.cold), threads=2)
        train, heldout = demo_split()
        write_jsonl(folder / "train.jsonl", train)
        write_jsonl(folder / "heldout.jsonl", heldout)
        if chosen.tune:
            print("\n".join(tuned(folder, chosen.steps, jobs)))
            return 0
        trained = [
            (method, jobs.submit(measure, "train", method, folder, seed, chosen.steps, CHOSEN[method]))
            for seed in range(chosen.seeds)
            for method in METHODS
        ]
        gradients = {method: jobs.submit(measure, "gradient", method, folder, chosen.batches) for method in METHODS}
        runs = {method: [run.result() for of, run in trained if of == method] for method in METHODS}
        noise = {method: gradient.result()["variance"] for method, gradient in gradients.items()}
    print("\n".join(report(runs, noise, steps=chosen.steps)))
    return 0


def measure(what: str, method: str, folder: Path, *words: object) -> Figures:
    """What one process measured."""
    done = subprocess.run(
        [sys.executable, HERE / "sides/method_run.py", what, method, folder, *map(str, words)],
        env=os.environ | OPENMP_POLICY,  # as `grpo` sets it
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{what} {method} ended with status {done.returncode}:\n{done.stderr[-4000:]}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    print(f"{what} {method} {words[0]}: {figures}", file=sys.stderr, flush=True)
    return figures


def tuned(folder: Path, steps: int, jobs: Executor) -> list[str]:
    """Mean reward by rate, of each method; the best is the one to choose."""
    runs = {
        (method, rate): [jobs.submit(measure, "train", method, folder, seed, steps, rate) for seed in TUNED_ON]
        for method, rates in RATES.items()
        for rate in rates
    }
    lines = []
    for method, rates in RATES.items():
        means = {rate: statistics.mean(run.result()["mean"] for run in runs[method, rate]) for rate in rates}
        shown = ", ".join(f"{rate:g} {mean:.3f}" for rate, mean in means.items())
        lines.append(f"{METHODS[method]:10} {shown}; best {max(means, key=lambda rate: means[rate]):g}")
    return lines


def report(runs: dict[str, list[Figures]], noise: Figures, *, steps: int) -> list[str]:
    """Table and RESULT lines."""
    lines = [
        f"{'':10} {'heldout':>14} {'last':>14} {'mean':>14} {'s':>7} {'models':>7} {'MiB':>5} {'peak':>6} {'noise':>7} "
        f"{'KL':>15}"
    ]
    start = statistics.mean(run["before"] for rounds in runs.values() for run in rounds)
    lines.append(f"{'start':10} {start:14.3f}")
    for method, rounds in runs.items():
        size = {name: statistics.median(run[name] for run in rounds) for name in rounds[0]}
        held = size["weights"] + size["gradients"] + size["optimiser"]
        lines.append(
            f"{METHODS[method]:10} {interval(rounds, 'heldout'):>14} {interval(rounds, 'last'):>14} "
            f"{interval(rounds, 'mean'):>14} {size['seconds']:7.1f} {size['models']:3.0f}, {size['trained']:2.0f} "
            f"{held:5.0f} {size['above']:6.0f} {noise[method]:7.1f} {interval(rounds, 'kl'):>15}"
        )
    for method, rounds in runs.items():
        counted = sorted({int(run["models"]) for run in rounds})
        lines.append(
            f"RESULT models_{method} {'-'.join(map(str, counted))} {MODELS[method]} "
            f"{'ok' if counted == [MODELS[method]] else 'miss'}"
        )
    lines.append(target("noise_reinforce_over_grpo", noise["reinforce"] / noise["grpo"], 1.0))
    for method, rounds in runs.items():
        gains = [run["heldout"] - run["before"] for run in rounds]
        lines.append(target(f"heldout_gained_{method}", statistics.mean(gains), 0.0))
    taken = sum(run["accepted"] for run in runs["trpo"]) / (steps * len(runs["trpo"]))
    lines.append(target("trpo_steps_accepted", taken, 0.9))
    return lines


def interval(rounds: list[Figures], name: str) -> str:
    """Mean, and half the width of its 95 % interval where there are several."""
    values = [run[name] for run in rounds]
    if len(values) < 2:
        return f"{values[0]:.3f}"
    half = student_t(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.3f} ±{half:.3f}"


def target(name: str, figure: float, above: float) -> str:
    return f"RESULT {name} {figure:.2f} {above:g} {'ok' if figure > above else 'miss'}"


if __name__ == "__main__":
    sys.exit(main())
