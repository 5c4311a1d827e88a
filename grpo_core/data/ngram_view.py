"""The comparisons of `decontaminate` over one spelling of the texts: numbers as they are, or all alike.

Each different word of the items is one character here, so that a text is a string, its n-grams are slices, and a
word that no item holds splits it like a blank. Loads no torch.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_core.data.minhash import Bands
from grpo_core.data.plain_words import CHARACTERS_PER_WORD, writing
from grpo_core.errors import DataError

LONG, SHORT, SHINGLE = 13, 8, 5
"""Words of an n-gram: GPT-3's (Brown et al. 2020, appendix C), PaLM's (Chowdhery et al. 2022, section 8), and those
that MinHash compares."""
SHORT_PERCENT = 70
"""PaLM's: an item counts when at least this share of its 8-grams is in training texts."""
JACCARD_PERCENT = 80
UNKNOWN = "\x00"
"""In place of a word that no item has."""
COMMON_ABOVE = 10
"""A 5-gram in more different items than this (or in more than half of them, and 2 at least) is the suite's wording, not
an item's own, and so is every n-gram that holds one. They are left out of all but the exact comparison, and counted."""
METHODS = ("exact", f"ngram{LONG}", f"ngram{SHORT}", "minhash")
_SURROGATES, _SURROGATES_END, _LAST = 0xD800, 0xE000, 0x10FFFF

Hits = dict[str, dict[str, Any]]
"""HIT by method."""
HIT = ("train", "share", "texts")


class _Alphabet(dict[str, str]):
    """One character for each word of the items; UNKNOWN for every other."""

    def __init__(self) -> None:
        self._next = 1

    def __missing__(self, word: str) -> str:
        return UNKNOWN

    def learn(self, words: Iterable[str]) -> str:
        return "".join([self.get(word) or self._new(word) for word in words])

    def read(self, words: Iterable[str]) -> str:
        return "".join(map(self.__getitem__, words))

    def _new(self, word: str) -> str:
        if self._next == _SURROGATES:
            self._next = _SURROGATES_END
        if self._next > _LAST:
            raise DataError(
                f"the evaluation items hold more than {_LAST - 0x800:,} different words; compare them in smaller parts"
            )
        self[word] = chr(self._next)
        self._next += 1
        return self[word]


@dataclass
class _Item:
    """One text, which several items may have."""

    ids: list[str]
    by_method: dict[str, tuple[str, float, int]] = field(default_factory=dict)
    """By method: nearest training text, its share, how many texts."""
    seen: set[str] = field(default_factory=set)
    """Its 8-grams that were in any training text."""

    def note(self, method: str, train: str, share: float) -> None:
        nearest, most, texts = self.by_method.get(method, (train, share, 0))
        self.by_method[method] = (train, share, texts + 1) if share > most else (nearest, most, texts + 1)


class View:
    """The items, `texts` by their words, and what was found of them so far."""

    def __init__(self, texts: Mapping[tuple[str, ...], list[str]]) -> None:
        self._alphabet = _Alphabet()
        self._exact: dict[str, _Item] = {}
        by_writing: dict[str, list[tuple[_Item, Sequence[str], str]]] = {}
        for words, ids in texts.items():
            item, spelled = _Item(ids), self._alphabet.learn(words)
            self._exact[spelled] = item
            by_writing.setdefault(writing(words), []).append((item, words, spelled))
        self._ngrams = [_Ngrams(CHARACTERS_PER_WORD[kind], entries) for kind, entries in by_writing.items()]

    def look(self, train: str, words: list[str]) -> None:
        """Compare one training text with all items."""
        spelled = self._alphabet.read(words)
        if (item := self._exact.get(spelled)) is not None:
            item.note("exact", train, 1.0)
        for ngrams in self._ngrams:
            ngrams.look(train, words, spelled)

    def hits(self) -> dict[str, Hits]:
        """Every touched item's id with how it was found."""
        hits: dict[str, Hits] = {}
        for ngrams in self._ngrams:
            for item, by in ngrams.hits():
                hits.update(dict.fromkeys(item.ids, by))
        return hits

    def left_out(self) -> dict[str, Any]:
        """What could be compared less: n-grams that are the suite's wording, texts without a distinctive n-gram."""
        lengths = (LONG, SHORT, SHINGLE)
        return {
            "common_ngrams": {str(n): sum(ngrams.common(n) for ngrams in self._ngrams) for n in lengths},
            "without_own_ngram": {str(n): sum(ngrams.without(n) for ngrams in self._ngrams) for n in lengths},
        }


class _Ngrams:
    """The items of one writing, by their n-grams; `scale` units stand for a word."""

    def __init__(self, scale: int, items: list[tuple[_Item, Sequence[str], str]]) -> None:
        self._scale = scale
        self._items = [item for item, _, _ in items]
        spelled = [text for _, _, text in items]
        common = common_ngrams(SHINGLE * scale, spelled)
        self._postings = {n: Postings(n * scale, spelled, common, SHINGLE * scale) for n in (LONG, SHORT, SHINGLE)}
        self._long, self._short, self._shingle = self._postings.values()
        self._bands = Bands()
        for number, (_, words, text) in enumerate(items):
            if own := self._shingle.own_words(words, text):
                self._bands.add(number, own)

    def look(self, train: str, words: list[str], spelled: str) -> None:
        # An n-gram without common 5-grams is made of shorter ones without, so each search begins where the last found.
        pieces = [piece for piece in spelled.split(UNKNOWN) if len(piece) >= SHINGLE * self._scale]
        if not pieces or not (shingles := self._shingle.shared(pieces)):
            return
        self._look_by_minhash(train, words, spelled, shingles)
        if not (short := self._short.shared(pieces)):
            return
        for number, grams in short.items():
            self._items[number].seen.update(grams)
            self._items[number].note(f"ngram{SHORT}", train, len(grams) / self._short.own[number])
        for number, grams in self._long.shared(pieces).items():
            self._items[number].note(f"ngram{LONG}", train, len(grams) / self._long.own[number])

    def _look_by_minhash(self, train: str, words: list[str], spelled: str, shared: dict[int, list[str]]) -> None:
        """A text of whose 5-grams no item holds 80 % cannot be 80 % like one, so it needs no signature."""
        most = max(map(len, shared.values()))
        if 100 * most < JACCARD_PERCENT * len(self._shingle.own_spelled(spelled)):
            return
        mine = self._shingle.own_words(words, spelled)
        for number in sorted(self._bands.near(mine)):
            both = len(shared.get(number, ()))
            either = len(mine) + self._shingle.own[number] - both
            if 100 * both >= JACCARD_PERCENT * either:
                self._items[number].note("minhash", train, both / either)

    def hits(self) -> Iterable[tuple[_Item, Hits]]:
        for number, item in enumerate(self._items):
            by_method = dict(item.by_method)
            if (short := by_method.pop(f"ngram{SHORT}", None)) is not None:
                seen, own = len(item.seen), self._short.own[number]
                if 100 * seen >= SHORT_PERCENT * own:
                    by_method[f"ngram{SHORT}"] = (short[0], seen / own, short[2])
            if by_method:
                yield (
                    item,
                    {name: dict(zip(HIT, by_method[name], strict=True)) for name in METHODS if name in by_method},
                )

    def common(self, n: int) -> int:
        return self._postings[n].left_out

    def without(self, n: int) -> int:
        own = self._postings[n].own
        return sum(len(item.ids) for number, item in enumerate(self._items) if not own[number])


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
