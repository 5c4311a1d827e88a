"""Texts of 100,000 characters that make careless rules take quadratic time or worse, and how long a rule may take.

The time of a rule is compared with its own on a quarter of the text, so that a slow machine fails nothing: linear is 4
times as long, quadratic 16 times. Half a second is short enough, so it passes whatever the quarter takes.
"""

import time
from collections.abc import Callable

SIZE = 100_000
PIECES = [
    *(" ", "\n", "a", "1", "1,", "1.", "-", "(", "{", "<", "$", "\\", "`", "*", "字", "\u0301"),
    *("1+", "1=", "a ", "1 ", "```\n", "\n\n "),
    *("<think>", "</think>", "<answer>", "</answer>", "<answer></answer>", "<think></think>"),
    *("####", "\\boxed{", "\\boxed{}", "\\frac{", "the answer is ", "answer: A or ", "A. "),
    *('{"a":', "[1,", "the quick ", "http://"),
]
FACTOR = 10.0
NOISE_SECONDS = 0.5


def texts(size: int = SIZE) -> list[str]:
    return [(piece * (size // len(piece) + 1))[:size] for piece in PIECES]


def assert_linear(score: Callable[[str], object], make: Callable[[str], str] = str) -> None:
    """`score` of each text, wrapped by `make`, takes at most FACTOR times what it takes on a quarter of it."""
    for whole in texts():
        long = _seconds(score, make(whole))
        if long > NOISE_SECONDS:
            short = _seconds(score, make(whole[: SIZE // 4]), enough=0.0)
            assert long <= FACTOR * short, (whole[:20], short, long)


def _seconds(score: Callable[[str], object], text: str, *, enough: float = NOISE_SECONDS) -> float:
    """The best of three; of fewer where one took less than `enough`."""
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        score(text)
        best = min(best, time.process_time() - began)
        if best < enough:
            break
    return best
