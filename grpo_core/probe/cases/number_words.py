"""English words for whole numbers."""

from fractions import Fraction

_ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def in_words(number: Fraction) -> str | None:
    """`forty-two`, `one thousand two hundred thirty-four`; None for what is not whole, or a million and more."""
    if number.denominator != 1 or abs(number) >= 1_000_000:
        return None
    return ("minus " if number < 0 else "") + _whole(abs(number.numerator))


def _whole(number: int) -> str:
    if number < 20:
        return _ONES[number]
    if number < 100:
        return _TENS[number // 10] + (f"-{_ONES[number % 10]}" if number % 10 else "")
    size, word = (1000, "thousand") if number >= 1000 else (100, "hundred")
    rest = number % size
    return f"{_whole(number // size)} {word}" + (f" {_whole(rest)}" if rest else "")
