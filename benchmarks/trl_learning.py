"""Whether Cohort learns as much from a sample as TRL does: the demo's additions from the demo's base model, both sides
with the same problems in the same order and the same settings. Prints the mean reward of each seed and the difference
of the areas under the reward curves with its 95 % interval, then a line for the target.

    make bench-env && .venv/bin/python benchmarks/trl_learning.py [--seeds 5] [--steps 60]

A curve is the mean reward of each step's 256 completions; its area, divided by the steps, is the mean reward over all
samples seen. Seeds are paired by their problems; the interval is Student's t of the differences. Held to be not below
TRL's where the interval's lower end is above −0.02 (MARGIN).
"""

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[1:1] = [str(HERE), str(HERE.parent)]

from sides import beside  # noqa: E402
from sides.beside import OURS, PYTHONS, TRL  # noqa: E402
from sides.work import Work  # noqa: E402

from grpo_core.data.arithmetic import demo_split  # noqa: E402
from grpo_core.stats.quantiles import student_t  # noqa: E402
from grpo_core.trainer.cold_start import Recipe, cold_start  # noqa: E402

MARGIN = 0.02
WORK = Work(
    "cold", 32, 8, 64, same=False, learning_rate=3e-4, clip_high=0.28, task="addition", micro_batch=0, vocabulary=258
)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--cold", type=int, default=Recipe().steps, help="supervised steps of the base model")
    options.add_argument("--trl-python", type=Path, default=PYTHONS[TRL])
    chosen = options.parse_args()
    pythons = {OURS: Path(sys.executable), TRL: chosen.trl_python}
    for python in beside.missing(pythons):
        print(f"{python} is missing; run: make bench-env", file=sys.stderr)
        return 2
    curves: dict[str, list[list[float]]] = {side: [] for side in pythons}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        cold_start(folder / "model", Recipe(steps=chosen.cold), threads=2)
        problems, _ = demo_split()
        told = [{"prompt": problem.prompt, "answer": problem.answer} for problem in problems]
        (folder / "problems.json").write_text(json.dumps(told))
        for seed in range(chosen.seeds):
            for side, python in pythons.items():
                said = beside.run(side, folder, replace(WORK, seed=seed), chosen.steps - 1, python=python)
                curves[side].append([said["first_reward"], *said["reward"]])
                print(f"seed {seed} {side}: {statistics.mean(curves[side][-1]):.3f}", file=sys.stderr, flush=True)
    print("\n".join(report(curves)))
    return 0


def report(curves: dict[str, list[list[float]]]) -> list[str]:
    """Table and RESULT line. `curves`: reward by step, by seed, by side."""
    areas = {side: [statistics.mean(curve) for curve in some] for side, some in curves.items()}
    lines = [f"{'':11} {'first step':>10} {'last steps':>10} {'mean over samples, by seed':>28}"]
    for side, some in curves.items():
        first = statistics.mean(curve[0] for curve in some)
        last = statistics.mean(statistics.mean(curve[-10:]) for curve in some)
        lines.append(f"{side:11} {first:10.3f} {last:10.3f}   " + "  ".join(f"{area:.3f}" for area in areas[side]))
    mean, low, high = paired_interval(areas[OURS], areas[TRL])
    lines.append(f"difference {mean:+.3f}, 95 % interval [{low:+.3f}, {high:+.3f}], {len(areas[OURS])} seeds")
    lines.append(f"RESULT learning_against_trl_low {low:.3f} {-MARGIN:g} {'ok' if low > -MARGIN else 'miss'}")
    return lines


def paired_interval(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """Mean of the differences and its 95 % interval by Student's t. Needs two seeds."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    mean = statistics.mean(differences)
    half = student_t(0.975, len(differences) - 1) * statistics.stdev(differences) / len(differences) ** 0.5
    return mean, mean - half, mean + half


if __name__ == "__main__":
    sys.exit(main())
