"""The comparisons of `decontaminate` over one spelling of the texts: numbers as they are, or all alike.

Each different word of the items is one character here, so that a text is a string, its n-grams are slices, and a
word that no item holds splits it like a blank. Loads no torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_core.data.minhash import Bands
from grpo_core.data.ngram_postings import UNKNOWN, Postings, common_ngrams
from grpo_core.data.plain_words import CHARACTERS_PER_WORD, writing
from grpo_core.errors import DataError

LONG, SHORT, SHINGLE = 13, 8, 5
"""Words of an n-gram: GPT-3's (Brown et al. 2020, appendix C), PaLM's (Chowdhery et al. 2022, section 8), and those
that MinHash compares."""
SHORT_PERCENT = 70
"""PaLM's: an item counts when at least this share of its 8-grams is in training texts."""
JACCARD_PERCENT = 80
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
