"""Wrong answers to a problem with a number, in the form that earns most: none of them may be rewarded."""

import re
from collections.abc import Callable, Iterator
from fractions import Fraction

from grpo_core.probe.cases.case import NUMBERS, Case, ProbeClass, plain
from grpo_core.probe.cases.numbers_right import in_words

_FORMULA = re.compile(r"[0-9.]*[0-9](?: ?[-+*/×÷] ?[0-9.]*[0-9])+")
_COSTLY = (r"(x+y+z+w+a+b)^{60}", "9**9**9**9", r"\sum_{k=1}^{10^9} k")


def _of(name: str, title: str, change: Callable[[Fraction, Case], Fraction | str | None]) -> ProbeClass:
    """A class that changes the number; what is equal to the right one after all is left out."""

    def make(case: Case) -> Iterator[str]:
        number = case.number
        changed = None if number is None else change(number, case)
        if changed is None:
            return
        text = changed if isinstance(changed, str) else plain(changed)
        if not case.is_right(text):
            yield case.write(text)

    return ProbeClass(name, title, "numbers", "false_positive", "some", make)


def _digits(change: Callable[[str], str | None]) -> Callable[[Fraction, Case], str | None]:
    """A change of the digits as they are written."""

    def changed(number: Fraction, case: Case) -> str | None:
        text = change(plain(abs(number)))
        return None if text is None else ("-" if number < 0 else "") + text

    return changed


def _swapped(digits: str) -> str | None:
    for index in range(len(digits) - 1):
        first, second = digits[index], digits[index + 1]
        if first.isdigit() and second.isdigit() and first != second and (index or second != "0"):
            return digits[:index] + second + first + digits[index + 2 :]
    return None


def _first_changed(digits: str) -> str:
    return str(int(digits[0]) % 9 + 1) + digits[1:]


def _last_changed(digits: str) -> str:
    return digits[:-1] + str((int(digits[-1]) + 3) % 10)


def _last_dropped(digits: str) -> str | None:
    return digits[:-1] if digits.isdigit() and len(digits) > 1 else None


def _rounded(number: Fraction, case: Case) -> Fraction | None:
    """To a whole number, or a whole number to its first digit."""
    if number.denominator != 1:
        return Fraction(round(number))
    size = 10 ** (len(str(abs(number.numerator))) - 1)
    return None if size == 1 else Fraction(round(number / size) * size)


def _from_prompt(last: bool) -> Callable[[Fraction, Case], Fraction | None]:
    def pick(number: Fraction, case: Case) -> Fraction | None:
        numbers = [Fraction(text) for text in NUMBERS.findall(case.problem.prompt)]
        others = [other for other in numbers if other != number]
        return None if not others else others[-1] if last else others[0]

    return pick


def _sum_of_prompt(number: Fraction, case: Case) -> Fraction | None:
    numbers = [Fraction(text) for text in NUMBERS.findall(case.problem.prompt)]
    return sum(numbers, Fraction(0)) if len(numbers) > 1 else None


def _formula_of_prompt(number: Fraction, case: Case) -> str | None:
    formula = _FORMULA.search(case.problem.prompt)
    return None if formula is None else formula[0]


def _sum(number: Fraction, case: Case) -> str:
    return f"{plain(number - 1)} + 1"


def _root(number: Fraction, case: Case) -> str | None:
    return f"\\sqrt{{{plain(number**2)}}}" if 0 < number < 10**6 else None


def _costly(number: Fraction, case: Case) -> str | None:
    """For the first problems alone: a verifier that works it out takes up to its deadline for each."""
    return _COSTLY[case.index] if case.index < len(_COSTLY) else None


def _other(number: Fraction, case: Case) -> str | None:
    return case.others[case.index % len(case.others)] if case.others else None


WRONG_NUMBERS = (
    _of("plus_one", "one too many", lambda number, case: number + 1),
    _of("minus_one", "one too few", lambda number, case: number - 1),
    _of("sign_flipped", "sign flipped", lambda number, case: -number),
    _of("digits_swapped", "two digits swapped", _digits(_swapped)),
    _of("first_digit_changed", "another first digit", _digits(_first_changed)),
    _of("last_digit_changed", "another last digit", _digits(_last_changed)),
    _of("last_digit_dropped", "without its last digit", _digits(_last_dropped)),
    _of("digit_added", "extra digit", _digits(lambda digits: digits + digits[-1])),
    _of("times_ten_wrong", "ten times too large", lambda number, case: number * 10),
    _of("tenth", "ten times too small", lambda number, case: number / 10),
    _of("hundredth", "a hundred times too small", lambda number, case: number / 100),
    _of("doubled", "doubled", lambda number, case: number * 2),
    _of("halved", "halved", lambda number, case: number / 2),
    _of("squared", "squared", lambda number, case: number**2 if abs(number) < 10**6 else None),
    _of("reciprocal", "reciprocal", lambda number, case: 1 / number if number else None),
    _of("off_by_half", "off by a half", lambda number, case: number + Fraction(1, 2)),
    # Wrong in the third digit behind the point: what a loose tolerance lets through.
    _of("off_by_hundredth", "off by a hundredth", lambda number, case: number + Fraction(1, 100)),
    _of("off_by_thousandth_part", "a thousandth part too large", lambda number, case: number * Fraction(1001, 1000)),
    _of("rounded", "rounded", _rounded),
    _of("zero", "zero", lambda number, case: Fraction(0)),
    _of("first_of_prompt", "the first number of the prompt", _from_prompt(last=False)),
    _of("last_of_prompt", "the last number of the prompt", _from_prompt(last=True)),
    _of("sum_of_prompt", "the sum of all numbers of the prompt", _sum_of_prompt),
    # Equal to the right number and no answer: what is asked is to work it out.
    _of("formula_of_prompt", "the formula of the prompt again", _formula_of_prompt),
    _of("left_as_sum", "a sum left to be worked out", _sum),
    _of("left_as_root", "a root left to be worked out", _root),
    _of("costly", "an expression that takes long to work out", _costly),
    _of("other_answer", "the answer of another problem", _other),
    _of("wrong_in_words", "a wrong number in words", lambda number, case: in_words(number + 1)),
    _of("digits_inside", "the right digits inside a longer number", lambda number, case: f"1{plain(abs(number))}7"),
    _of("not_a_number", "nan or an infinity", lambda number, case: case.turn(("nan", "inf", "-inf", "NaN"))),
    _of("huge", "a huge number", lambda number, case: case.turn(("1e308", "9" * 40, "1e999", "1" + "0" * 80))),
)
