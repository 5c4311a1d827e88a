"""Right answers to a problem with a number, written in other ways: what a verifier should reward and may refuse."""

from collections.abc import Callable, Iterator
from fractions import Fraction

from grpo_core.probe.cases.case import Case, ProbeClass, decimal, plain

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


_FULL_WIDTH = str.maketrans("0123456789.-", "０１２３４５６７８９．－")
_ARABIC_INDIC = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")


def _of(name: str, title: str, rewrite: Callable[[Fraction], str | None]) -> ProbeClass:
    """A class that writes the number in another way, in the form that earns most."""

    def make(case: Case) -> Iterator[str]:
        number = case.number
        if number is not None and (text := rewrite(number)) is not None and text != case.gold:
            yield case.write(text)

    return ProbeClass(name, title, "numbers", "false_negative", "told", make)


def _grouped(number: Fraction, separator: str) -> str | None:
    text = decimal(number)
    if text is None or abs(number) < 1000:
        return None
    whole, point, rest = text.partition(".")
    return f"{int(whole):,}".replace(",", separator) + point + rest


def _is_whole(number: Fraction) -> bool:
    return number.denominator == 1


def _latex_fraction(number: Fraction) -> str:
    sign = "-" if number < 0 else ""
    above, below = abs(number.numerator), number.denominator
    return rf"{sign}\frac{{{2 * above}}}{{2}}" if below == 1 else rf"{sign}\frac{{{above}}}{{{below}}}"


def _mixed(number: Fraction) -> str | None:
    whole, rest = divmod(abs(number.numerator), number.denominator)
    if _is_whole(number) or not whole:
        return None
    return f"{'-' if number < 0 else ''}{whole} {rest}/{number.denominator}"


def _scientific(number: Fraction, before: str, after: str = "") -> str | None:
    """The power of ten is written between `before` and `after`."""
    if decimal(abs(number)) is None or number == 0:
        return None
    power, scaled = 0, abs(number)
    while scaled >= 10:
        scaled, power = scaled / 10, power + 1
    while scaled < 1:
        scaled, power = scaled * 10, power - 1
    return f"{'-' if number < 0 else ''}{decimal(scaled) or plain(scaled)}{before}{power}{after}"


def _percent(number: Fraction) -> str | None:
    text = decimal(number * 100)
    return None if _is_whole(number) or text is None else f"{text}%"


def _with_point(number: Fraction, zeros: str) -> str | None:
    text = decimal(number)
    if text is None:
        return None
    return text + (zeros if "." in text else f".{zeros}")


def _leading(number: Fraction) -> str | None:
    text = decimal(number)
    return None if text is None or not 0 < abs(number) < 1 else text.replace("0.", ".", 1)


def _negative(number: Fraction, sign: str) -> str | None:
    return f"{sign}{plain(-number)}" if number < 0 else None


RIGHT_NUMBERS = (
    _of("digits_alone", "digits alone, without separators (1234)", plain),
    _of("thousands_comma", "commas between thousands (1,234)", lambda number: _grouped(number, ",")),
    _of("thousands_thin_space", "thin spaces between thousands", lambda number: _grouped(number, "\u202f")),
    _of("thousands_space", "spaces between thousands (1 234)", lambda number: _grouped(number, " ")),
    _of("thousands_latex", "LaTeX thousands (1{,}234)", lambda number: _grouped(number, "{,}")),
    _of("trailing_zero", "one more zero after the point (42.0)", lambda number: _with_point(number, "0")),
    _of("trailing_zeros", "two more zeros after the point (42.00)", lambda number: _with_point(number, "00")),
    _of(
        "trailing_point",
        "a point at the end (42.)",
        lambda number: f"{number.numerator}." if _is_whole(number) else None,
    ),
    _of("leading_zero", "a zero in front (042)", lambda number: f"0{number}" if number > 0 else None),
    _of("no_leading_zero", "no zero before the point (.5)", _leading),
    _of("leading_plus", "a plus sign (+42)", lambda number: f"+{plain(number)}" if number > 0 else None),
    _of("minus_sign", "the minus sign U+2212 (−42)", lambda number: _negative(number, "−")),
    _of("minus_space", "a space after the minus (- 42)", lambda number: _negative(number, "- ")),
    _of("over_one", "over one (42/1)", lambda number: f"{number.numerator}/1" if _is_whole(number) else None),
    _of("fraction", "a fraction (1/2)", lambda number: None if _is_whole(number) else str(number)),
    _of(
        "fraction_unreduced",
        "a fraction that can be reduced (84/2, 2/4)",
        lambda number: f"{2 * number.numerator}/{2 * number.denominator}",
    ),
    _of("decimal", "a decimal (0.5)", lambda number: None if _is_whole(number) else decimal(number)),
    _of("mixed_number", "a mixed number (1 1/2)", _mixed),
    _of("latex_fraction", r"a LaTeX fraction (\frac{1}{2})", _latex_fraction),
    _of(
        "latex_dfrac",
        r"a LaTeX display fraction (\dfrac{1}{2})",
        lambda number: _latex_fraction(number).replace("frac", "dfrac"),
    ),
    _of("scientific", "scientific notation (4.2e1)", lambda number: _scientific(number, "e")),
    _of("times_ten", r"a power of ten (4.2 \times 10^{1})", lambda number: _scientific(number, r" \times 10^{", "}")),
    _of("percent", "a ratio as a percentage (0.5 as 50%)", _percent),
    _of("currency", "a currency sign ($42)", lambda number: f"${plain(number)}" if number >= 0 else None),
    _of(
        "currency_latex",
        r"an escaped currency sign (\$42)",
        lambda number: rf"\${plain(number)}" if number >= 0 else None,
    ),
    _of("unit", "a unit in words (42 apples)", lambda number: f"{plain(number)} apples"),
    _of("unit_short", "a unit (42 cm)", lambda number: f"{plain(number)} cm"),
    _of("unit_latex", r"a unit in LaTeX (42\text{ cm})", lambda number: rf"{plain(number)}\text{{ cm}}"),
    _of("variable", "a variable in front (x = 42)", lambda number: f"x = {plain(number)}"),
    _of("words", "words for digits (forty-two)", in_words),
    _of("full_width", "full-width digits (４２)", lambda number: plain(number).translate(_FULL_WIDTH)),
    _of("arabic_indic", "Arabic-Indic digits (٤٢)", lambda number: plain(number).translate(_ARABIC_INDIC)),
)
