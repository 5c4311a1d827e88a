"""How many answers a second each rule scores, through the runner as a training step does it. Prints a line per rule,
then one for the target.

    .venv/bin/python benchmarks/rewards.py [--answers 10000] [--data ../shared/data]

Answers are GSM8K's own test solutions where the data is there, else made sums of the same form. They are scored by the
thousand, and the fastest thousand counts: other work on the machine only ever makes one slower. Rules with mode
subprocess are scored in their processes, after a first few answers that start them, by the hundred.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from grpo_core.config.run import RewardConfig  # noqa: E402
from grpo_core.data import Problem, load_problems  # noqa: E402
from grpo_core.rewards import Rubric, Runner  # noqa: E402
from grpo_core.rewards.base import ScoreRequest  # noqa: E402

NUMERIC_PER_SECOND = 5_000
BATCH, BATCH_SUBPROCESS = 1000, 100
SCHEMA = {"type": "object", "required": ["answer"], "properties": {"answer": {"type": "string"}}}
RULES: list[tuple[str, str, dict[str, Any]]] = [
    ("numeric", "hashes", {"extract": "hashes"}),
    ("numeric", "LaTeX", {"extract": "boxed"}),
    ("exact", "", {"extract": "hashes"}),
    ("choice", "", {"extract": "whole"}),
    ("r1_format", "", {}),
    ("tags", "", {}),
    ("equations", "", {}),
    ("length", "words", {"unit": "words"}),
    ("soft_overlong", "", {}),
    ("language", "", {}),
    ("similarity", "rouge_l", {"column": "solution", "extract": "whole"}),
    ("similarity", "bleu", {"column": "solution", "extract": "whole", "measure": "bleu"}),
    ("similarity", "chrf", {"column": "solution", "extract": "whole", "measure": "chrf"}),
    ("similarity", "edit", {"column": "solution", "extract": "whole", "measure": "edit"}),
    ("regex", "subprocess", {"pattern": r"####\s*-?[\d,.]+\s*$"}),
    ("json_schema", "subprocess", {"json_schema": SCHEMA}),
    ("math", "subprocess", {"extract": "boxed"}),
]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--answers", type=int, default=10_000)
    options.add_argument("--data", type=Path, default=HERE.parents[1] / "shared" / "data")
    chosen = options.parse_args()
    samples = list(islice(cycle(_samples(chosen.data)), chosen.answers))
    rates = {}
    print(f"{'rule':<22}{'answers/s':>12}{'µs each':>10}")
    for kind, what, params in RULES:
        rates[kind, what] = rate(kind, params, samples, BATCH_SUBPROCESS if what == "subprocess" else BATCH)
        print(f"{f'{kind} {what}':<22}{rates[kind, what]:>12,.0f}{1e6 / rates[kind, what]:>10.1f}")
    measured = rates["numeric", "hashes"]
    passed = measured >= NUMERIC_PER_SECOND
    print(f"RESULT rewards_numeric_per_second {measured:.0f} {NUMERIC_PER_SECOND} {'ok' if passed else 'miss'}")
    return 0 if passed else 1


def rate(kind: str, params: dict[str, Any], samples: list[ScoreRequest], batch: int) -> float:
    """Answers a second, of the fastest batch among the first ten. The choice kind asks for letters, so its problems are
    given one."""
    if kind == "choice":
        samples = [
            ScoreRequest(Problem(one.problem.id, "", "B"), f"{one.completion}\nThe answer is B.") for one in samples
        ]
    config = RewardConfig.model_validate({"components": [{"name": "one", "kind": kind, "params": params}]})
    with Runner(Rubric(config)) as runner:
        wrong = [one for one in runner.score(samples[:50]) if one.reward is None]
        if wrong:
            raise RuntimeError(f"{kind}: {wrong[0].components['one'].error}")
        seconds = []
        for start in range(0, min(len(samples), 10 * batch), batch):
            began = time.perf_counter()
            runner.score(samples[start : start + batch])
            seconds.append(time.perf_counter() - began)
    return batch / min(seconds)


def _samples(data: Path) -> Iterator[ScoreRequest]:
    """Solutions with their answer after `####` and, as LaTeX, in a box."""
    path = data / "gsm8k" / "test.jsonl"
    for problem in load_problems(path, "gsm8k") if path.is_file() else _sums():
        text = f"{problem.meta['solution']}\nThat is $\\boxed{{\\frac{{{problem.answer}}}{{1}}}}$."
        yield ScoreRequest(problem, f"{text}\n#### {problem.answer}", tokens=len(text) // 4)


def _sums() -> Iterator[Problem]:
    drawn = random.Random(0)
    for number in range(1000):
        terms = [drawn.randint(1, 999) for _ in range(6)]
        steps = "\n".join(f"She adds {a} + {b} = {a + b} to it." for a, b in pairwise(terms))
        question = f"What is the sum of {', '.join(map(str, terms))}, all of them added up one after the other?"
        yield Problem(f"sum-{number}", question, str(sum(terms)), {"solution": f"{steps}\n#### {sum(terms)}"})


if __name__ == "__main__":
    sys.exit(main())
