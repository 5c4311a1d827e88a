"""Training speed and memory beside TRL's GRPOTrainer: the same models, prompts, completion lengths, rewards and
settings, both sides in turn on this machine. Prints one table, then a line per target; where one is missed, then where
Cohort's step spends its time.

    make bench-env
    .venv/bin/python benchmarks/trl.py [--rounds 3] [--steps 1] [--cases beta_0,worst] [--ours] [--engine JSON]

beta_0   reference work: a random Qwen2 of 22,028,928 parameters, vocabulary 32,768; 8 prompts of 64 to 256 tokens ×
         G 8; completions that end by themselves, mean 45 % of a maximum of 256; 40 % of the groups without variance
         (of 8 groups 3 3 4 3 3 in turn, so 37.5 % in one measured step); fp32, μ 1, two threads
beta_0.04  the same with a KL term: a reference model, and every completion has a gradient
worst    full lengths: 4 prompts of 11 tokens × G 8 × 128 tokens, β 0.04, every group with variance; TRL's better of
         micro-batches of 8 and of all
small    a random Llama of 919,168 parameters with a byte vocabulary: 16 prompts of 38 to 60 bytes × G 8, at most 128
         tokens, β 0, every group with variance

Each side is run as it is shipped: Cohort by `grpo train`, with its records and its sleeping threads, TRL by its
trainer. The end token's bias is part of the weights (sides/make_model.py), so both sample lengths from one
distribution; the table prints what they drew. Prompts, their order and the groups without variance are the same on both
sides, step by step. The first step of each run warms up.
"""

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(1, str(HERE))

from sides import beside  # noqa: E402
from sides.beside import OURS, PYTHONS, TRL, Side, result  # noqa: E402
from sides.work import REFERENCE, SMALL, TINY, WORST, Work  # noqa: E402


@dataclass(frozen=True)
class Case:
    work: Work
    speed: float
    """Target: times TRL's samples per second, at least."""
    memory: float
    """Target: times TRL's peak memory, at most."""
    micro_batches: tuple[int, ...]
    """TRL's, of which the fastest counts; 0 is all completions at once."""


CASES = {
    "beta_0": Case(REFERENCE, 8.0, 0.35, (16,)),
    "beta_0.04": Case(replace(REFERENCE, beta=0.04), 5.0, 0.35, (16,)),
    "worst": Case(WORST, 2.0, 1.0, (8, 0)),
    "small": Case(SMALL, 1.0, 1.0, (0,)),
    "tiny": Case(TINY, 0.0, 10.0, (4,)),
}
"""tiny is for tests and left out unless it is named."""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--steps", type=int, default=1, help="measured in each round, after one to warm up")
    options.add_argument("--cases", default="beta_0,beta_0.04,worst,small", help="names from above, comma between")
    options.add_argument("--ours", action="store_true", help="Cohort alone: no comparison, no RESULT lines")
    options.add_argument(
        "--engine", type=json.loads, default={}, help="""JSON over Cohort's: '{"torch_compile": true}'"""
    )
    options.add_argument("--profile", action="store_true", help="where Cohort's time goes, for every case")
    options.add_argument("--python", type=Path, default=PYTHONS[OURS], help="Cohort's interpreter")
    options.add_argument("--trl-python", type=Path, default=PYTHONS[TRL])
    chosen = options.parse_args()
    pythons = {OURS: chosen.python} if chosen.ours else {OURS: chosen.python, TRL: chosen.trl_python}
    for python in beside.missing(pythons):
        print(f"{python} is missing; run: make bench-env", file=sys.stderr)
        return 2
    cases = {name: with_engine(CASES[name], chosen.engine) for name in chosen.cases.split(",")}
    with tempfile.TemporaryDirectory() as made:
        folders = {name: Path(made, name) for name in cases}
        for name, case in cases.items():
            beside.make(folders[name], case.work, chosen.python)
        told = {name: measured(case, folders[name], pythons, chosen) for name, case in cases.items()}
        lines = report(cases, told)
        print("\n".join(lines), flush=True)
        for name, case in cases.items():
            if chosen.profile or any(line.endswith(" miss") and f"{name} " in line for line in lines):
                said = beside.run(OURS, folders[name], case.work, 1, python=chosen.python, also=("--profile",))
                print("\n".join(f"{name:10} {line}" for line in said["lines"]), flush=True)
    return 0


def with_engine(case: Case, engine: dict[str, Any]) -> Case:
    """The case with these settings of Cohort's engine in the place of its own."""
    return replace(case, work=replace(case.work, engine={**(case.work.engine or {}), **engine} or None))


def measured(case: Case, folder: Path, pythons: dict[str, Path], chosen: argparse.Namespace) -> dict[str, Side]:
    """Both sides' rounds, in turn; of TRL's micro-batches the fastest."""
    ways = [(OURS, 0)] + [(TRL, size) for size in case.micro_batches if TRL in pythons]
    sides: dict[tuple[str, int], Side] = {way: Side() for way in ways}
    for number in range(chosen.rounds):
        for (name, size), side in sides.items():
            work = replace(case.work, micro_batch=size, seed=number)
            side.rounds.append(beside.run(name, folder, work, chosen.steps, python=pythons[name]))
            print(f"{folder.name} round {number + 1} {name}: {side.all('seconds')[-1]:.2f} s", file=sys.stderr)
    best = {OURS: sides[OURS, 0]}
    if TRL in pythons:
        best[TRL] = min((side for (name, _), side in sides.items() if name == TRL), key=lambda side: side.seconds)
    return best


def report(cases: dict[str, Case], told: dict[str, dict[str, Side]]) -> list[str]:
    """Table and RESULT lines."""
    lines = [
        f"{'':10} {'':11} {'s/step':>8} {'fastest':>8} {'slowest':>8} {'sample':>8} {'update':>8} {'samples/s':>10} "
        f"{'tokens/s':>9} {'length':>7} {'same':>6} {'peak GB':>8}"
    ]
    results = []
    for name, sides in told.items():
        count = cases[name].work.completions
        for side, one in sides.items():
            seconds, tokens = one.all("seconds"), one.all("tokens")
            same = one.all("same")
            lines.append(
                f"{name:10} {side:11} {one.seconds:8.2f} {min(seconds):8.2f} {max(seconds):8.2f} "
                f"{statistics.median(one.all('sample') or one.all('rollout')):8.2f} "
                f"{statistics.median(one.all('update')):8.2f} "
                f"{count / one.seconds:10.2f} {sum(tokens) / sum(seconds):9.0f} "
                f"{sum(tokens) / len(tokens) / count:7.1f} "
                f"{f'{statistics.mean(same):.0%}' if same else '':>6} {one.peak:8.2f}"
            )
        if TRL in sides:
            ours, theirs = sides[OURS], sides[TRL]
            results += [
                result(f"speed_{name}", theirs.seconds / ours.seconds, cases[name].speed, at_least=True),
                result(f"peak_memory_{name}", ours.peak / theirs.peak, cases[name].memory, at_least=False),
            ]
    return lines + results


if __name__ == "__main__":
    sys.exit(main())
