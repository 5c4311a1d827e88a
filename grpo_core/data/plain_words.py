"""A text as the words that two texts are compared by: what remains when case, white space, punctuation and the way a
number is written no longer count. Loads no torch.
"""

import re
import unicodedata
from collections.abc import Sequence

NORMALISATION = (
    "Unicode NFKC, case folded; white space and punctuation only part words; a number is one word in a common form "
    "(digits of any script; commas of thousands, leading zeros and zeros after the point left out: 1,000.50 is 1000.5);"
    " signs of arithmetic between operands are words; number words and European decimal commas stay as they are"
)
CHARACTERS_PER_WORD = {"spaced": 1, "han_kana": 2, "southeast_asian": 4}
"""How many units stand for one word. Where words are parted by spaces a unit is a word. Han and kana, and Thai, Lao,
Khmer and Burmese, put no space between words: there each character is a unit, and n words are 2·n or 4·n units."""
NUMBER = "0"
"""What every number becomes in the view that masks them."""

_HAN_KANA = "\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\U0001aff0-\U0001b16f\U00020000-\U0003ffff"
_SOUTHEAST_ASIAN = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\ua9e0-\ua9ff\uaa60-\uaa7f"


def _marks() -> str:
    """Vowel signs and accents of all scripts, which Python's \\w leaves out, as ranges of a character class."""
    ranges: list[list[int]] = []
    for point in range(0x300, 0x1F000):
        if unicodedata.category(chr(point)).startswith("M") and not _UNSPACED.match(chr(point)):
            if ranges and ranges[-1][1] == point - 1:
                ranges[-1][1] = point
            else:
                ranges.append([point, point])
    return "".join(f"{chr(low)}-{chr(high)}" for low, high in ranges)


_UNSPACED = re.compile(f"[{_HAN_KANA}{_SOUTHEAST_ASIAN}]")
_HAN_KANA_UNIT, _SOUTHEAST_ASIAN_UNIT = re.compile(f"[{_HAN_KANA}]"), re.compile(f"[{_SOUTHEAST_ASIAN}]")
_LETTERS = rf"[^\W\d_{_HAN_KANA}{_SOUTHEAST_ASIAN}]"
_UNIT = re.compile(
    rf"{_LETTERS}+(?:[{_marks()}]+{_LETTERS}*)*"
    r"|\d+(?:\.\d+)?"
    rf"|[{_HAN_KANA}]|[{_SOUTHEAST_ASIAN}]"
    r"|(?:(?<=[\w)\]}])|(?<=[\w)\]}] ))[+*/=<>^](?= ?[\w(\[{\\$.+-])"
    r"|(?<!-)-(?= ?[\d(])|(?<=[\d)\]] )-(?= )"
    r"|(?<=\d)%"
)
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_THOUSANDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_SIGNS = str.maketrans({"−": "-", "×": "*", "·": "*", "÷": "/"})


def units(text: str) -> list[str]:
    """The text's units (`CHARACTERS_PER_WORD`) in order; none when it holds neither letter nor digit."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).translate(_SIGNS)
    one_line = " ".join(text.casefold().split())
    return _UNIT.findall(_NUMBER.sub(_common_form, one_line))


def masked(of: list[str]) -> list[str]:
    """The same units with every number alike, so that two problems that differ in numbers alone are equal."""
    return [NUMBER if unit[0].isdecimal() else unit for unit in of]


def writing(of: Sequence[str]) -> str:
    """Which of CHARACTERS_PER_WORD the units are counted by: the script that most of them are in."""
    han = sum(_HAN_KANA_UNIT.match(unit) is not None for unit in of)
    southeast = sum(_SOUTHEAST_ASIAN_UNIT.match(unit) is not None for unit in of)
    if 2 * (han + southeast) <= len(of):
        return "spaced"
    return "han_kana" if han >= southeast else "southeast_asian"


def _common_form(match: re.Match[str]) -> str:
    number = match[0]
    if not number.isascii():
        number = "".join(str(unicodedata.decimal(char)) if char.isdecimal() else char for char in number)
    if "," in number:
        if not _THOUSANDS.fullmatch(number):
            return " ".join(_shortest(piece) for piece in number.split(",") if piece) + (
                " " if number[-1] == "," else ""
            )
        number = number.replace(",", "")
    return _shortest(number)


def _shortest(number: str) -> str:
    whole, point, rest = number.partition(".")
    whole, rest = whole.lstrip("0") or "0", rest.rstrip("0")
    return f"{whole}.{rest}" if point and rest else whole
