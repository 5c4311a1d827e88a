"""Two-digit additions: a task small enough that a run on a laptop really learns it.

The cold start teaches the worked completion; GRPO then has something to sharpen.
"""

import json
import random
import re
from collections.abc import Iterable
from pathlib import Path

from grpo_core.data.problem import Problem
from grpo_core.errors import DataError

SMALLEST, LARGEST = 10, 99
HELD_OUT = 512

_PROMPT = re.compile(r"what is ([1-9][0-9]) \+ ([1-9][0-9])\?")


def addition_problems(count: int, seed: int, *, exclude: frozenset[str] = frozenset()) -> list[Problem]:
    """`count` different problems `what is 37 + 45?`, drawn by `seed`, none whose prompt is in `exclude`.

    There are 90 × 90 = 8,100 in all; raises DataError when fewer than `count` are left.
    """
    numbers = range(SMALLEST, LARGEST + 1)
    pool = [problem for a in numbers for b in numbers if (problem := _problem(a, b)).prompt not in exclude]
    if count > len(pool):
        raise DataError(f"there are only {len(pool)} two-digit additions left to draw {count} from")
    return random.Random(seed).sample(pool, count)


def worked_completion(problem: Problem) -> str:
    """The completion that a cold start teaches: units, then tens, then the answer.

    37 + 45 → `<think>7+5=12, 3+4+1=8</think><answer>82</answer>`. The carry is a third addend of the tens and is
    left out when there is none (12 + 34 → `2+4=6, 1+3=4`); tens are written in full when they reach ten
    (58 + 67 → `8+7=15, 5+6+1=12`, answer 125).
    """
    match = _PROMPT.fullmatch(problem.prompt)
    if match is None:
        raise DataError(f"{problem.id}: not a two-digit addition such as 'what is 37 + 45?': {problem.prompt!r}")
    a, b = int(match[1]), int(match[2])
    units = a % 10 + b % 10
    carry = units // 10
    tens = a // 10 + b // 10 + carry
    shown_carry = "+1" if carry else ""
    thought = f"{a % 10}+{b % 10}={units}, {a // 10}+{b // 10}{shown_carry}={tens}"
    return f"<think>{thought}</think><answer>{a + b}</answer>"


def demo_split(seed: int = 0) -> tuple[list[Problem], list[Problem]]:
    """(train, held out): 512 held-out problems, and every other addition except those with the addends swapped, so
    that 45 + 37 is never trained on when 37 + 45 is held out."""
    heldout = addition_problems(HELD_OUT, seed)
    kept_away = frozenset(prompt for problem in heldout for prompt in (problem.prompt, _swapped(problem.prompt)))
    remaining = (LARGEST - SMALLEST + 1) ** 2 - len(kept_away)
    return addition_problems(remaining, seed + 1, exclude=kept_away), heldout


def write_jsonl(path: Path, problems: Iterable[Problem]) -> None:
    """Write problems so that `load_problems(path, "jsonl")` gives them back."""
    with path.open("w", encoding="utf-8", newline="\n") as handle:
        for problem in problems:
            fields = {"id": problem.id, "prompt": problem.prompt, "answer": problem.answer, **problem.meta}
            handle.write(json.dumps(fields, ensure_ascii=False) + "\n")


def _problem(a: int, b: int) -> Problem:
    return Problem(id=f"add-{a}-{b}", prompt=f"what is {a} + {b}?", answer=str(a + b))


def _swapped(prompt: str) -> str:
    return _PROMPT.sub(r"what is \2 + \1?", prompt)
