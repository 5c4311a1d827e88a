"""One problem as the probe sees it: what kind of answer it has, in which form an answer is written, what is wrong.

Makes texts only; nothing here scores or runs anything.
"""

import random
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from grpo_core.data.problem import Problem
from grpo_core.probe.hacks.base import Target
from grpo_core.probe.report import Family, Rule
from grpo_core.rewards.kinds.numeric import parse_number

Subject = Literal["number", "expression", "choice", "words", "json", "code"]
"""number: a plain number. expression: maths that is no plain number (LaTeX, a percentage, a set). choice: a letter."""

THOUGHT = "Let me work through it step by step."
"""What stands for reasoning; holds no number."""


@dataclass(frozen=True)
class Form:
    """A way of writing an answer down. `build(problem)` gives the text with `THINK` and `ANSWER` in it."""

    name: str
    title: str
    build: Callable[[Problem], str | None]
    """None where the problem has no such text."""

    def write(self, problem: Problem, answer: str, thought: str = THOUGHT) -> str | None:
        built = self.build(problem)
        return None if built is None else built.replace(THINK, thought).replace(ANSWER, answer)


NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+)?")
THINK, ANSWER = "\x01think\x01", "\x01answer\x01"


@dataclass(frozen=True)
class Case:
    problem: Problem
    index: int
    """Place among the problems of the probe."""
    subject: Subject
    gold: str
    """The right answer's text: the reference answer, or the reference solution of a code problem. Empty where the
    problem has none."""
    form: Form
    others: tuple[str, ...]
    """Right answers of other problems of the same subject, none of them right here."""
    seed: int
    letter: str = ""
    """Of a choice: the right option's."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Of a choice: the options' texts by letter, where they are known."""
    target: Target | None = None
    """Of code: what the tests call, and how they are written; None where they cannot be read."""
    of_target: int = 0
    """Place among the problems whose tests are written in the same way."""

    @property
    def number(self) -> Fraction | None:
        return parse_number(self.gold) if self.subject == "number" else None

    @property
    def has_thought(self) -> bool:
        return THINK in (self.form.build(self.problem) or "")

    @property
    def has_marks(self) -> bool:
        """The form is more than the answer itself."""
        return self.form.build(self.problem) != ANSWER

    def write(self, answer: str, thought: str = THOUGHT) -> str:
        """The answer in the form in which right ones earn most."""
        return self.form.write(self.problem, answer, thought) or answer

    def random(self, name: str) -> random.Random:
        """A generator seeded by class and problem."""
        return random.Random(f"{self.seed}:{self.problem.id}:{name}")

    def turn(self, options: tuple[str, ...]) -> str:
        """One of several, each problem the next one, so that all are tried over the problems."""
        return options[self.index % len(options)]

    def is_right(self, answer: str) -> bool:
        """Whether a text that was meant to be wrong happens to be the reference answer."""
        if _folded(answer) == _folded(self.gold) or (self.letter and answer.strip(" .()").upper() == self.letter):
            return True
        number = self.number
        return number is not None and parse_number(answer) == number

    def mentions(self, text: str) -> bool:
        """Whether a text that was meant to hold no answer happens to name the right one."""
        if self.letter:
            return re.search(rf"\b{self.letter}\b", text) is not None
        number = self.number
        if number is not None:
            return any(Fraction(numeral) == abs(number) for numeral in NUMBERS.findall(text))
        return bool(self.gold) and _folded(self.gold) in _folded(text)

    @property
    def wrong(self) -> str:
        """A wrong answer that looks like a right one."""
        number = self.number
        if number is not None:
            return plain(number + 1)
        if self.subject == "choice":
            return self.wrong_letters()[0]
        if self.others:
            return self.others[self.index % len(self.others)]
        return {"json": '"wrong"', "code": "def nothing():\n    return None", "expression": f"{self.gold} + 1"}.get(
            self.subject, "something else"
        )

    def wrongs(self, count: int) -> list[str]:
        """Different wrong answers, at most `count`."""
        number = self.number
        if number is not None:
            steps = [step for pair in zip(range(1, count + 1), range(-1, -count - 1, -1), strict=True) for step in pair]
            return [plain(number + step) for step in steps][:count]
        if self.subject == "choice":
            return self.wrong_letters()[:count]
        return [*self.others, *(("something else", "another thing") if self.subject != "code" else ())][:count]

    def letters(self) -> list[str]:
        """The options' letters; A to D where they are not known."""
        return sorted({*(self.options or "ABCD"), self.letter})

    def wrong_letters(self) -> list[str]:
        after = [letter for letter in self.letters() if letter != self.letter]
        turned = self.index % len(after)
        return after[turned:] + after[:turned]


@dataclass(frozen=True)
class ProbeClass:
    """Makes completions of one kind; none where it does not apply to a problem."""

    name: str
    title: str
    about: str
    family: Family
    rule: Rule
    make: Callable[[Case], Iterable[str]]


def plain(number: Fraction) -> str:
    """Digits, with a decimal point where that says it exactly in a few digits, else as a fraction."""
    if number.denominator == 1:
        return str(number.numerator)
    return decimal(number) or f"{number.numerator}/{number.denominator}"


def decimal(number: Fraction) -> str | None:
    """The number in decimals, without zeros at the end; None where it has more than twelve, or no end."""
    for places in range(13):
        scaled = number * 10**places
        if scaled.denominator == 1:
            digits = str(abs(scaled.numerator)).rjust(places + 1, "0")
            sign = "-" if number < 0 else ""
            return sign + (digits if places == 0 else f"{digits[:-places]}.{digits[-places:]}")
    return None


def _folded(text: str) -> str:
    kept = unicodedata.normalize("NFKC", text).casefold()
    return "".join(char for char in kept if char.isalnum() or char in "+-/.<>=")
