"""Which words of two texts differ, so that a page can mark them. Knows no Django."""

import re
from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher

MOST_WORDS = 3_000
"""Of both together, with the spaces between; beyond it the texts stand side by side unmarked."""
MOST_PAIRS = 20_000
"""Of a word of the one with the same word of the other. The comparison looks at them again for each run of words that
is in both, so that texts of a few words said over and over would take minutes. Prose of that length has fewer."""
_PIECES = re.compile(r"\s+|[\w.,%−+-]+|.", re.DOTALL)


@dataclass(frozen=True)
class Piece:
    text: str
    differs: bool


def marked(before: str, after: str) -> tuple[list[Piece], list[Piece]]:
    """Both texts in pieces that are in both, or differ. Joined again they are the texts."""
    a, b = _PIECES.findall(before), _PIECES.findall(after)
    if len(a) + len(b) > MOST_WORDS or _pairs(a, b) > MOST_PAIRS:
        return [Piece(before, False)], [Piece(after, False)]
    left, right = [], []
    for tag, i1, i2, j1, j2 in SequenceMatcher(str.isspace, a, b, autojunk=False).get_opcodes():
        if i2 > i1:
            left.append(Piece("".join(a[i1:i2]), tag != "equal"))
        if j2 > j1:
            right.append(Piece("".join(b[j1:j2]), tag != "equal"))
    return left, right


def _pairs(a: list[str], b: list[str]) -> int:
    first, second = Counter(a), Counter(b)
    return sum(count * second[word] for word, count in first.items() if not word.isspace())
