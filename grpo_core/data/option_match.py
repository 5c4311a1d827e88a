"""Which training texts hold the options of a multiple-choice item, whatever their order, their letters and the question
that is asked with them. Loads no torch.

A text holds an option where all of its words follow each other. Numbers and signs must be equal too, but count for
nothing: options such as "True" and "False" or four numbers are in too many texts to show where they are from.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from grpo_core.data.ngram_view import COMMON_ABOVE, HIT, LONG, Hits
from grpo_core.data.plain_words import CHARACTERS_PER_WORD, writing

METHOD = "options"
LEAST_WORDS = LONG
"""Words that the matched options must have together: as many as the long n-gram has."""
LEAST_OPTIONS = 2
LEAST_PERCENT = 70
"""Of the words of the item's own options; one that was left out or reworded does not hide a copy."""
_SIGNS = frozenset("+-*/=<>^%")

_Words = tuple[str, ...]


class OptionView:
    """The options of items over one spelling of the texts, and what was found of them so far."""

    def __init__(self, items: Iterable[tuple[str, Sequence[str], Iterable[Sequence[str]]]]) -> None:
        """`items`: (id, words of the prompt, words of each option); those without options are passed over."""
        different: dict[tuple[_Words, frozenset[_Words]], list[str]] = {}
        for name, prompt, options in items:
            if held := frozenset(words for option in options if (words := tuple(option))):
                different.setdefault((tuple(prompt), held), []).append(name)
        counts = Counter(option for _, held in different for option in held)
        most = min(COMMON_ABOVE, max(2, len(different) // 2))
        common = {option for option, count in counts.items() if count > most}
        self._common, self._too_short = len(common), 0
        self._ids: list[list[str]] = []
        self._own: list[int] = []
        """Words of the item's own options."""
        self._least: list[int] = []
        self._held_by: dict[_Words, list[int]] = {}
        for (_, held), ids in different.items():
            own = held - common
            weight, least = sum(map(_weight, own)), LEAST_WORDS * _scale(held)
            if len(own) < LEAST_OPTIONS or weight < least:
                self._too_short += len(ids)
                continue
            for option in own:
                self._held_by.setdefault(option, []).append(len(self._ids))
            self._ids.append(ids)
            self._own.append(weight)
            self._least.append(least)
        self._positions = _positions(self._held_by)
        self._hits: dict[int, tuple[str, float, int]] = {}

    def look(self, train: str, words: list[str]) -> None:
        """Compare one training text with all items."""
        standing: dict[int, list[_Words]] = {}
        for option in self._standing(words):
            for number in self._held_by[option]:
                standing.setdefault(number, []).append(option)
        for number, options in standing.items():
            weight, own = sum(map(_weight, options)), self._own[number]
            enough = len(options) >= LEAST_OPTIONS and weight >= self._least[number]
            if enough and 100 * weight >= LEAST_PERCENT * own:
                nearest, most, texts = self._hits.get(number, (train, 0.0, 0))
                share = weight / own
                self._hits[number] = (train if share > most else nearest, max(share, most), texts + 1)

    def hits(self) -> dict[str, Hits]:
        """Every touched item's id with how it was found."""
        return {
            name: {METHOD: dict(zip(HIT, hit, strict=True))}
            for number, hit in self._hits.items()
            for name in self._ids[number]
        }

    def left_out(self) -> dict[str, int]:
        """What could not be compared: options that are the suite's wording, and items whose own options are too short
        or too few."""
        return {"common_options": self._common, "options_too_short": self._too_short}

    def _standing(self, words: list[str]) -> set[_Words]:
        """The options that a text contains."""
        present: set[_Words] = set()
        if self._positions.keys().isdisjoint(words):
            return present
        for at, word in enumerate(words):
            for option, offset in self._positions.get(word, ()):
                begin = at - offset
                if begin >= 0 and option not in present and tuple(words[begin : begin + len(option)]) == option:
                    present.add(option)
        return present


def _positions(options: Iterable[_Words]) -> dict[str, list[tuple[_Words, int]]]:
    """Each option under the rarest of its words, with that word's index in it, so that a text is compared with few."""
    options = list(options)
    counts = Counter(word for option in options for word in set(option))
    positions: dict[str, list[tuple[_Words, int]]] = {}
    for option in options:
        offset = min(range(len(option)), key=lambda at: counts[option[at]])
        positions.setdefault(option[offset], []).append((option, offset))
    return positions


def _weight(option: _Words) -> int:
    """Its words without numbers and signs, as units of `plain_words`."""
    return sum(not word[0].isdecimal() and word not in _SIGNS for word in option)


def _scale(options: Iterable[_Words]) -> int:
    return CHARACTERS_PER_WORD[writing([word for option in options for word in option])]
