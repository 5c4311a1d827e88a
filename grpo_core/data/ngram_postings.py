"""Which items hold which n-grams, and which n-grams are only the suite's wording. Loads no torch."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

UNKNOWN = "\x00"
"""In place of a word that no item has."""
COMMON_ABOVE = 10
"""A 5-gram in more different items than this (or in more than half of them, and 2 at least) is the suite's wording, not
an item's own, and so is every n-gram that holds one. They are left out of all but the exact comparison, and counted."""


def common_ngrams(length: int, spelled: list[str]) -> frozenset[str]:
    """The n-grams that more than COMMON_ABOVE of the texts hold, or more than half of them, and 2 at least."""
    counts = Counter(gram for text in spelled for gram in _grams(text, length))
    most = min(COMMON_ABOVE, max(2, len(spelled) // 2))
    return frozenset(gram for gram, count in counts.items() if count > most)


class Postings:
    """Which items hold each n-gram, without those n-grams that hold a common one of `short` units."""

    def __init__(self, length: int, spelled: list[str], common: frozenset[str], short: int) -> None:
        self._length, self._common = length, common
        self._items: dict[str, list[int]] = {}
        left_out: set[str] = set()
        for number, text in enumerate(spelled):
            own, wording = _parted(text, length, common, short)
            left_out |= wording
            for gram in own:
                self._items.setdefault(gram, []).append(number)
        self.left_out = len(left_out)
        self.own = Counter(number for numbers in self._items.values() for number in numbers)

    def shared(self, pieces: list[str]) -> dict[int, list[str]]:
        """The n-grams of a text's pieces that items hold, by item."""
        grams: set[str] = set()
        for piece in pieces:
            grams |= self._items.keys() & _grams(piece, self._length)
        by_item: dict[int, list[str]] = {}
        for gram in grams:
            for number in self._items[gram]:
                by_item.setdefault(number, []).append(gram)
        return by_item

    def own_spelled(self, text: str) -> set[str]:
        return _grams(text, self._length) - self._common

    def own_words(self, words: Sequence[str], text: str) -> set[str]:
        """Its 5-grams in words, without those of the suite's wording."""
        length = self._length
        starts = range(len(text) - length + 1)
        return {" ".join(words[i : i + length]) for i in starts if text[i : i + length] not in self._common}


def _grams(text: str, length: int) -> set[str]:
    return {text[i : i + length] for i in range(len(text) - length + 1)}


def _parted(text: str, length: int, common: frozenset[str], short: int) -> tuple[set[str], set[str]]:
    """(its n-grams that hold no common one of `short` units, those that do)."""
    starts = [i for i in range(len(text) - short + 1) if text[i : i + short] in common] if common else []
    if not starts:
        return _grams(text, length), set()
    parts: tuple[set[str], set[str]] = (set(), set())
    for i in range(len(text) - length + 1):
        next_start = bisect_left(starts, i)
        holds = next_start < len(starts) and starts[next_start] <= i + length - short
        parts[holds].add(text[i : i + length])
    return parts
