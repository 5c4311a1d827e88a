"""Which evaluation items the training texts already hold, word for word or nearly. Loads no torch.

The items are held in memory, the training texts are read one at a time. Nothing is sampled and nothing is cut: every
item that is touched is named, with the training text nearest to it. What it cannot see: paraphrase, translation, and
what the base model read before.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from grpo_core.data.minhash import BANDS, PERMUTATIONS, ROWS, SEED
from grpo_core.data.ngram_view import COMMON_ABOVE, LONG, SHINGLE, SHORT, Hits, View
from grpo_core.data.ngram_view import METHODS as OF_THE_TEXT
from grpo_core.data.option_match import LEAST_OPTIONS, LEAST_PERCENT, LEAST_WORDS, OptionView
from grpo_core.data.option_match import METHOD as OF_THE_OPTIONS
from grpo_core.data.plain_words import CHARACTERS_PER_WORD, NORMALISATION, masked, units
from grpo_core.errors import DataError

METHODS = (*OF_THE_TEXT, OF_THE_OPTIONS)
_NO_OPTIONS: Mapping[str, Sequence[str]] = MappingProxyType({})


def overlap(
    train: Iterable[tuple[str, str]],
    items: Iterable[tuple[str, str]],
    options: Mapping[str, Sequence[str]] = _NO_OPTIONS,
) -> dict[str, Any]:
    """Compare training texts with evaluation items; both are (id, text), the text being what the policy is asked.
    `options` are those of multiple-choice items, by the item's id, when its text is without them.

    Returns JSON-ready: `method` (all parameters), `train` and `items` (how many, and which could not be compared how),
    `counts` of items by method, `touched`: [{"id", "by": {method: {"train", "share", "texts"}}}] in the items' order,
    and `same_but_numbers`: as `touched`, the items that are found only once every number counts as the same. `train`
    is the nearest training text's id, the first of equals. `share` is 1 for `exact`; for `ngram13` the share of the
    item's 13-grams in that text; for `ngram8` the share of its 8-grams in all training texts together; for `minhash`
    the Jaccard similarity of 5-grams with that text, computed exactly; for `options` the share of the words of the
    item's own options that are in that text. `texts` is how many training texts matched so (for `ngram8`: that
    hold any of them). Reports named `cohort-overlap-1` did not compare options: `counts` and `items` lack them.

    Raises DataError when two items have one id, or hold more different words than can be distinguished.
    """
    names: dict[str, list[str]] = {}
    texts: dict[tuple[str, ...], list[str]] = {}
    blind_texts: dict[tuple[str, ...], list[str]] = {}
    wordless = []
    for name, text in items:
        if name in names:
            raise DataError(f"two evaluation items have the id {name!r}; ids must be unique")
        words = units(text)
        names[name] = words if name in options else []
        if words:
            texts.setdefault(tuple(words), []).append(name)
            blind_texts.setdefault(tuple(masked(words)), []).append(name)
        else:
            wordless.append(name)
    chosen = [
        (name, names[name], [units(choice) for choice in choices]) for name, choices in options.items() if name in names
    ]
    blind_chosen = [(name, masked(words), [masked(choice) for choice in choices]) for name, words, choices in chosen]
    plain, blind = View(texts), View(blind_texts)
    plain_options, blind_options = OptionView(chosen), OptionView(blind_chosen)
    count = empty = 0
    for name, text in train:
        words = units(text)
        count, empty = count + 1, empty + (not words)
        masked_words = masked(words)
        plain.look(name, words)
        plain_options.look(name, words)
        blind.look(name, masked_words)
        blind_options.look(name, masked_words)
    touched, blind_touched = _together(plain, plain_options), _together(blind, blind_options)
    only_blind = {name: by for name, by in blind_touched.items() if name not in touched}
    return {
        "method": _method(),
        "train": {"texts": count, "without_words": empty},
        "items": {
            "texts": len(names),
            "different": len(texts),
            "without_words": wordless,
            **plain.left_out(),
            **plain_options.left_out(),
        },
        "counts": {"touched": len(touched), **_by_method(touched), "same_but_numbers": len(only_blind)},
        "touched": [{"id": name, "by": touched[name]} for name in names if name in touched],
        "same_but_numbers": [{"id": name, "by": only_blind[name]} for name in names if name in only_blind],
    }


def _together(view: View, options: OptionView) -> dict[str, Hits]:
    hits = view.hits()
    for name, by in options.hits().items():
        hits[name] = {**hits.get(name, {}), **by}
    return hits


def _method() -> dict[str, Any]:
    return {
        "name": "cohort-overlap-2",
        "normalisation": NORMALISATION,
        "units_per_word": CHARACTERS_PER_WORD,
        "exact": "all words equal, in order",
        f"ngram{LONG}": {"words": LONG, "touched_from": "1 n-gram in one training text"},
        f"ngram{SHORT}": {"words": SHORT, "touched_from": "70 % of the item's n-grams in training texts"},
        "minhash": {
            "words": SHINGLE,
            "touched_from": "Jaccard similarity 0.8 with one training text",
            "permutations": PERMUTATIONS,
            "bands": BANDS,
            "rows": ROWS,
            "hash": "BLAKE2b, 64 bits",
            "seed": SEED,
        },
        OF_THE_OPTIONS: {
            "words": LEAST_WORDS,
            "touched_from": f"{LEAST_OPTIONS} options that stand in one training text, in any order, with "
            f"{LEAST_WORDS} words and {LEAST_PERCENT} % of the words of the item's own options; numbers and signs are "
            "no words here",
            "common": f"options in more than {COMMON_ABOVE} different items (or in more than half of them, and 2 at "
            "least) are the suite's wording and left out",
        },
        "common": f"{SHINGLE}-grams in more than {COMMON_ABOVE} different items (or in more than half of them, and 2 "
        "at least) are the suite's wording: n-grams that hold one are left out of all but the exact comparison",
        "same_but_numbers": "the same comparisons with every number alike",
    }


def _by_method(hits: dict[str, Hits]) -> dict[str, int]:
    return {method: sum(method in by for by in hits.values()) for method in METHODS}
