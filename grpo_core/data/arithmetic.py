"""Additions: tasks small enough that a run on a laptop really learns them.

Two-digit ones as plain text for a model of 0.4 M parameters: a cold start teaches it the worked completion, and GRPO
then has something to sharpen. Sums of numbers to 20 as conversations with three examples, for an instruct model of a
hundred million: it answers about a third of them right, so most groups have something to compare.
"""

import json
import random
import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo_core.data.problem import Message, Problem
from grpo_core.errors import DataError

SMALLEST, LARGEST = 10, 99
HELD_OUT = 512

CHAT_LARGEST, CHAT_HELD_OUT = 20, 100
CHAT_SYSTEM = "You add two numbers."
CHAT_EXAMPLES = ((3, 4), (12, 5), (9, 18))

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


def chat_split(seed: int = 0) -> tuple[list[Problem], list[Problem]]:
    """(train, held out): the sums of two numbers from 1 to 20 as conversations, each after the same three examples. 100
    are held out, and no other is trained on whose addends are those of one of them or of an example, swapped."""
    numbers = range(1, CHAT_LARGEST + 1)
    pairs = [(a, b) for a in numbers for b in numbers if not {(a, b), (b, a)} & set(CHAT_EXAMPLES)]
    random.Random(seed).shuffle(pairs)
    heldout = pairs[:CHAT_HELD_OUT]
    kept_away = {*heldout, *((b, a) for a, b in heldout)}
    return [_conversation(*pair) for pair in pairs if pair not in kept_away], [_conversation(*pair) for pair in heldout]


def _conversation(a: int, b: int) -> Problem:
    messages = [Message("system", CHAT_SYSTEM)]
    for x, y in CHAT_EXAMPLES:
        messages += [Message("user", _question(x, y)), Message("assistant", f"{x} + {y} = <answer>{x + y}</answer>")]
    question = _question(a, b)
    messages.append(Message("user", question))
    return Problem(id=f"sum-{a}-{b}", prompt=question, answer=str(a + b), messages=tuple(messages))


def _question(a: int, b: int) -> str:
    return f"What is {a} + {b}?"


def worked_rows(problems: Iterable[Problem]) -> list[dict[str, str]]:
    """Conversations to fine-tune on: each problem with its worked answer."""
    return [{"prompt": problem.prompt, "completion": worked_completion(problem)} for problem in problems]


def write_jsonl(path: Path, rows: Iterable[Problem | dict[str, str]]) -> None:
    """Write problems so that `load_problems(path, "plain")` gives them back, and rows as they are."""
    with path.open("w", encoding="utf-8", newline="\n") as handle:
        for row in rows:
            handle.write(json.dumps(_plain(row) if isinstance(row, Problem) else row, ensure_ascii=False) + "\n")


def _plain(problem: Problem) -> dict[str, Any]:
    prompt = [asdict(message) for message in problem.messages] or problem.prompt
    return {"id": problem.id, "prompt": prompt, "answer": problem.answer, **problem.meta}


def _problem(a: int, b: int) -> Problem:
    return Problem(id=f"add-{a}-{b}", prompt=f"what is {a} + {b}?", answer=str(a + b))


def _swapped(prompt: str) -> str:
    return _PROMPT.sub(r"what is \2 + \1?", prompt)
