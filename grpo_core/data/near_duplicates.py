"""Which of a few texts nearly repeat an earlier one. Compares each with each, which is right for the completions of one
problem; of many texts `minhash` finds the candidates. Loads no torch."""

import re
from collections.abc import Sequence

_WORD = re.compile(r"\w+")


def near_duplicates(texts: Sequence[str], *, words: int, share: float) -> set[int]:
    """Indices of the texts whose set of word n-grams, n = `words`, has a Jaccard similarity of at least `share` with
    that of an earlier text. Case does not count; a text of fewer words is one gram.
    Source: Broder 1997, "On the resemblance and containment of documents"."""
    near: set[int] = set()
    earlier: list[set[tuple[str, ...]]] = []
    for index, text in enumerate(texts):
        spelled = _WORD.findall(text.casefold())
        grams = {tuple(spelled[at : at + words]) for at in range(max(len(spelled) - words + 1, 1))}
        if any(_similar(grams, others, share) for others in earlier):
            near.add(index)
        earlier.append(grams)
    return near


def _similar(grams: set[tuple[str, ...]], others: set[tuple[str, ...]], share: float) -> bool:
    smaller, larger = sorted((len(grams), len(others)))
    if smaller < share * larger:
        return False
    shared = len(grams & others)
    return shared >= share * (smaller + larger - shared)
