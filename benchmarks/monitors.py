"""How often monitors raise a false alarm and how often they miss: 20 honest and 20 planted runs of the demo's task.

    .venv/bin/python benchmarks/monitors.py [--only hack,honest] [--seeds 5] [--first 0] [--steps 32] [--jobs 2]

Planted, five of each: `hack` (a verifier that pays wrong answers of a certain form), `length` (long completions are
paid), `collapse` (a rate so high that the policy falls apart) and `leak` (eight training problems, which are learned
by heart). Honest: presets, group sizes, rates, KL and rewards vary, and some reach nearly all right. An alarm is an
event of a monitor that is declared as one (grpo_core/monitors/table.py); those that only advise are listed but do not
count. The thresholds were chosen on seeds from 100 on, and are reported on those from 0 on. Prints a line for each run,
a table, and RESULT lines; exits 1 on a miss.
"""

import argparse
import json
import multiprocessing
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import yaml  # noqa: E402

from grpo_core.data.arithmetic import addition_problems, demo_split, write_jsonl  # noqa: E402
from grpo_core.monitors.table import ALARMS  # noqa: E402

LEAST_FOUND, MOST_FALSE = 0.9, 0.05
"""Share of planted runs that must raise an alarm, and of honest ones that may."""
BASE = {"base": 120, "late": 400}
"""Supervised steps of the models that runs start from."""
CORRECT = {"name": "correct", "kind": "exact", "weight": 0.8, "params": {"extract": "answer_tag"}}
FORMAT = {"name": "format", "kind": "r1_format", "weight": 0.2}
HELDOUT = 96
NARROW_BELOW, NARROW_HELDOUT = 22, 44
"""Sums of numbers below it are soon learned; so many of these are held out."""
_NUMBERS = re.compile(r"[0-9]+")
FEW = 8
"""Training problems of a leak."""
SEVEN = {"kind": "regex", "params": {"pattern": "<answer>[0-9]*7</answer>"}}


@dataclass(frozen=True)
class Plan:
    """One run."""

    kind: str
    seed: int
    settings: dict[str, Any]
    """Over the usual ones."""
    model: str = "base"


@dataclass(frozen=True)
class Outcome:
    kind: str
    seed: int
    steps: int
    alarms: dict[str, int]
    """Code of each alarm → step of the first."""
    advice: dict[str, int]
    """The same of what only advises."""
    right: tuple[float, float]
    """Share of right completions in the first and in the last step."""
    seconds: float


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", default="hack,length,collapse,leak,honest", help="kinds, parted by commas")
    options.add_argument(
        "--seeds", type=int, default=5, help="of each planted kind, and four times as many honest runs"
    )
    options.add_argument("--first", type=int, default=0, help="the first seed")
    options.add_argument("--steps", type=int, default=32)
    options.add_argument("--jobs", type=int, default=2, help="runs at the same time, each with one thread")
    options.add_argument("--keep", type=Path, help="folder for the runs; a temporary one where not given")
    chosen = options.parse_args()
    plans = [plan for kind in chosen.only.split(",") for plan in plans_of(kind, chosen.first, chosen.seeds)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        prepare(folder)
        context = multiprocessing.get_context("spawn")
        outcomes = []
        with context.Pool(chosen.jobs, maxtasksperchild=10) as pool:
            work = ((folder, plan, chosen.steps) for plan in plans)
            for outcome in pool.imap(run, work):
                outcomes.append(outcome)
                print(line_of(outcome), flush=True)
    lines = report(outcomes)
    print("\n".join(lines))
    return 1 if any(line.endswith("miss") for line in lines) else 0


# ---------------------------------------------------------------------- what is run


def plans_of(kind: str, first: int, seeds: int) -> Iterator[Plan]:
    makers = {"hack": hacked, "length": lengthened, "collapse": collapsed, "leak": leaked}
    if kind == "honest":
        yield from (honest(seed) for seed in range(first, first + 4 * seeds))
    else:
        yield from (makers[kind](seed) for seed in range(first, first + seeds))


def hacked(seed: int) -> Plan:
    """Answers that end in 7 are paid, right or not. Odd seeds name what means right besides; even ones have this
    verifier alone, and a suite that is judged exactly."""
    if seed % 2:
        components = [{**CORRECT, "weight": 0.3}, {"name": "loophole", "weight": 0.7, **SEVEN}]
        return Plan("hack", seed, {"reward": {"components": components, "success": "correct"}, "optim": {"lr": 3e-4}})
    suite = {
        "name": "sums",
        "title": "Sums",
        "path": "suite.jsonl",
        "category": "performance",
        "scorer": {"kind": "exact", "params": {"extract": "answer_tag"}},
    }
    settings = {
        "reward": {"components": [{"name": "verifier", **SEVEN}]},
        "eval": {"suites": [suite], "during": ["sums"]},
        "checkpoints": {"best_by": "sums"},
        "optim": {"lr": 3e-4},
    }
    return Plan("hack", seed, settings)


def lengthened(seed: int) -> Plan:
    """The longer the better, whatever the answer."""
    length = {"name": "length", "kind": "length", "weight": 0.8, "params": {"least": 96, "most": 96, "limit": 97}}
    settings = {
        "reward": {"components": [{**CORRECT, "weight": 0.2}, length], "success": "correct"},
        "sampling": {"max_completion_tokens": 96},
        "optim": {"lr": 3e-4},
    }
    return Plan("length", seed, settings)


def collapsed(seed: int) -> Plan:
    rates = (2e-3, 4e-3, 8e-3, 2e-2, 5e-2)
    settings = {
        "optim": {"lr": rates[seed % 5], "warmup_steps": 0, "max_grad_norm": 100.0},
        "algorithm": {"clip_high": 0.2},
    }
    return Plan("collapse", seed, settings)


def leaked(seed: int) -> Plan:
    """Few problems, at a rate at which they are learned by heart."""
    return Plan("leak", seed, {"data": {"path": f"few-{seed % 5}.jsonl"}, "optim": {"lr": 5e-4}})


DAPO: dict[str, Any] = {
    "algorithm": {"mini_batches": 4, "overlong": {"buffer_tokens": 8}, "dynamic_sampling": {"max_batches": 3}}
}
NARROW: dict[str, Any] = {"data": {"path": "narrow.jsonl"}, "eval": {"path": "narrow-heldout.jsonl"}}
HONEST: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("demo", {"optim": {"lr": 2e-4}, **NARROW}, "base"),
    ("deepseekmath", {"optim": {"lr": 1e-4}, **NARROW}, "base"),
    ("dr_grpo", {"optim": {"lr": 1e-4}, **NARROW}, "base"),
    ("dapo", {"optim": {"lr": 5e-5}, **DAPO, **NARROW}, "base"),
    ("gspo", {"optim": {"lr": 1e-4}, **NARROW}, "base"),
    ("demo", {"optim": {"lr": 5e-5}}, "late"),
    ("deepseekmath", {"optim": {"lr": 1e-4}, "algorithm": {"kl": {"coef": 0.01}}, **NARROW}, "base"),
    ("rloo", {"optim": {"lr": 1e-4}, **NARROW}, "base"),
    ("dr_grpo", {"optim": {"lr": 5e-5}, "sampling": {"group_size": 4}}, "late"),
    ("demo", {"sampling": {"group_size": 16, "prompts_per_step": 4}, "optim": {"lr": 1e-4}, **NARROW}, "base"),
    ("cispo", {"optim": {"lr": 1e-4}}, "base"),
    ("demo", {"reward": {"components": [{**CORRECT, "weight": 0.5}, {**FORMAT, "weight": 0.5}]}, **NARROW}, "base"),
    ("demo", {"optim": {"lr": 2e-5}}, "late"),
    ("deepseekmath", {"optim": {"lr": 5e-5}}, "base"),
    ("demo", {"reward": {"components": [{**CORRECT, "weight": 1.0}]}, **NARROW}, "base"),
    ("dapo", {"optim": {"lr": 2e-5}, **DAPO}, "base"),
    ("gspo", {"optim": {"lr": 5e-5}, "sampling": {"group_size": 4}, **NARROW}, "base"),
    ("dr_grpo", {"optim": {"lr": 1e-4}}, "base"),
    ("reinforce_pp", {"optim": {"lr": 1e-4}, **NARROW}, "base"),
    ("demo", {"optim": {"lr": 3e-5}}, "base"),
)


def honest(seed: int) -> Plan:
    preset, settings, model = HONEST[seed % len(HONEST)]
    return Plan("honest", seed, {"preset": preset, **settings}, model)


def usual(plan: Plan, steps: int) -> dict[str, Any]:
    return {
        "preset": "demo",
        "model": {"path": plan.model},
        "data": {"path": "train.jsonl"},
        "reward": {"components": [CORRECT, FORMAT]},
        "sampling": {"group_size": 8, "prompts_per_step": 8, "max_completion_tokens": 64},
        "optim": {"steps": steps, "lr": 2e-4, "warmup_steps": 5},
        "eval": {"path": "heldout.jsonl", "every": 10, "after": False, "temperature": 1.0},
        "checkpoints": {"every": 10**6, "final": False},
        "traces": {"groups_per_step": 1},
        "engine": {"threads": 1, "device": "cpu"},
        "seed": plan.seed,
    }


# ---------------------------------------------------------------------- running it


def prepare(folder: Path) -> None:
    """The models and the problems, unless they are there."""
    from grpo_core.trainer.cold_start import Recipe, cold_start

    for name, steps in BASE.items():
        cold_start(folder / name, Recipe(steps=steps), threads=1)
    train, heldout = demo_split()
    write_jsonl(folder / "train.jsonl", train)
    write_jsonl(folder / "heldout.jsonl", heldout[:HELDOUT])
    narrow = [
        row for row in addition_problems(8100, 0) if all(int(n) < NARROW_BELOW for n in _NUMBERS.findall(row.prompt))
    ]
    write_jsonl(folder / "narrow.jsonl", narrow[:-NARROW_HELDOUT])
    write_jsonl(folder / "narrow-heldout.jsonl", narrow[-NARROW_HELDOUT:])
    for number in range(5):
        write_jsonl(folder / f"few-{number}.jsonl", train[FEW * number : FEW * (number + 1)])
    items = [json.dumps({"id": row.id, "prompt": row.prompt, "target": row.answer}) for row in heldout[:HELDOUT]]
    (folder / "suite.jsonl").write_text("\n".join(items) + "\n", encoding="utf-8")


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    whole = dict(base)
    for name, value in over.items():
        before = whole.get(name)
        whole[name] = merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return whole


def run(work: tuple[Path, Plan, int]) -> Outcome:
    """The command `grpo train` in this process; what it recorded."""
    from grpo_core.cli.main import main as grpo

    folder, plan, steps = work
    began = time.monotonic()
    path = folder / f"{plan.kind}-{plan.seed}.yaml"
    path.write_text(yaml.safe_dump(merged(usual(plan, steps), plan.settings)), encoding="utf-8")
    out = folder / f"run-{plan.kind}-{plan.seed}"
    with (folder / f"{plan.kind}-{plan.seed}.printed").open("w") as printed:
        stdout, sys.stdout = sys.stdout, printed
        try:
            status = grpo(["train", str(path), "--out", str(out)])
        finally:
            sys.stdout = stdout
    if status != 0:
        raise RuntimeError(f"{path}: exit status {status}: {(out / 'log.txt').read_text()[-2000:]}")
    return outcome_of(plan, out, time.monotonic() - began)


def outcome_of(plan: Plan, out: Path, seconds: float) -> Outcome:
    events, metrics = rows(out / "events.jsonl"), rows(out / "metrics.jsonl")
    first: dict[str, int] = {}
    for event in events:
        if event.get("type") == "diagnosis":
            first.setdefault(event["data"]["cause"], event["data"]["step"])
    alarms = {code: step for code, step in first.items() if code in ALARMS}
    advice = {code: step for code, step in first.items() if code not in ALARMS}
    right = [row["metrics"]["completions/right"] for row in metrics]
    return Outcome(plan.kind, plan.seed, len(metrics), alarms, advice, (right[0], right[-1]), seconds)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line)["record"] for line in path.read_text(encoding="utf-8").splitlines()]


# ---------------------------------------------------------------------- what is printed


def line_of(outcome: Outcome) -> str:
    def listed(causes: dict[str, int]) -> str:
        return ", ".join(f"{code} {step}" for code, step in sorted(causes.items(), key=lambda item: item[1])) or "–"

    start, end = outcome.right
    return (
        f"{outcome.kind:9} seed {outcome.seed:<4} {outcome.steps} steps, right {start:.2f} → {end:.2f}, "
        f"{outcome.seconds:.0f} s | alarms: {listed(outcome.alarms)} | advice: {listed(outcome.advice)}"
    )


def report(outcomes: Sequence[Outcome]) -> list[str]:
    """Table by kind, and a RESULT line for planted and for honest runs."""
    lines = ["", "| runs | with an alarm | first alarm, median step | by |", "| --- | --- | --- | --- |"]
    for kind in dict.fromkeys(outcome.kind for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.kind == kind]
        firsts = sorted(min(outcome.alarms.values()) for outcome in own if outcome.alarms)
        codes = sorted({code for outcome in own for code in outcome.alarms})
        causes = ", ".join(f"`{code}` {sum(code in outcome.alarms for outcome in own)}" for code in codes)
        middle = str(firsts[len(firsts) // 2]) if firsts else "–"
        lines.append(f"| {kind} | {len(firsts)} of {len(own)} | {middle} | {causes or '–'} |")
    lines.append("")
    planted = [outcome for outcome in outcomes if outcome.kind != "honest"]
    others = [outcome for outcome in outcomes if outcome.kind == "honest"]
    if planted:
        alarmed = sum(bool(outcome.alarms) for outcome in planted)
        fits = alarmed >= LEAST_FOUND * len(planted)
        lines.append(f"RESULT planted_with_alarm {alarmed}/{len(planted)} {LEAST_FOUND:g} {'ok' if fits else 'miss'}")
    if others:
        false = sum(bool(outcome.alarms) for outcome in others)
        fits = false <= MOST_FALSE * len(others)
        lines.append(f"RESULT honest_with_alarm {false}/{len(others)} {MOST_FALSE:g} {'ok' if fits else 'miss'}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
