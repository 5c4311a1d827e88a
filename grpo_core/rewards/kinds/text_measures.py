"""How close two texts are: small implementations of known measures, each with its source and its choices.

All are 0 to 1, 1 for equal texts and 0 where nothing is in common. The two that align texts work on the bits of whole
numbers, one step a character or word of the first text, so that they take time linear in it for a given second one.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

CHRF_ORDER, CHRF_BETA = 6, 2.0
BLEU_ORDER = 4


def ratio(one: str, other: str) -> float:
    """2 · LCS / (length + length), by characters; LCS is the length of their longest common subsequence."""
    if not one and not other:
        return 1.0
    return 2 * common_subsequence(one, other) / (len(one) + len(other))


def edit(one: str, other: str) -> float:
    """1 − distance / length of the longer one; distance is Levenshtein's (insertions, deletions, replacements)."""
    longer = max(len(one), len(other))
    return 1 - edit_distance(one, other) / longer if longer else 1.0


def ngram_f1(one: Sequence[str], other: Sequence[str], order: int) -> float:
    """2PR / (P + R), P and R the shares of each text's runs of `order` words that the other has, as often as it has
    them.

    With order 1 it is the F1 of SQuAD (Rajpurkar et al. 2016, arXiv 1606.05250, section 6.1) and ROUGE-1; with 2
    ROUGE-2 (Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries", section 2), each with β = 1.
    """
    mine, theirs = _runs(one, order), _runs(other, order)
    common = (mine & theirs).total()
    return 2 * common / (mine.total() + theirs.total()) if common else 0.0


def rouge_l(one: Sequence[str], other: Sequence[str]) -> float:
    """2PR / (P + R) with P = LCS / |one|, R = LCS / |other|, by words of the whole texts.

    Source: Lin 2004, section 3.1, equations 2 to 4 with β = 1. It is 2 · LCS / (|one| + |other|).
    """
    return 2 * common_subsequence(one, other) / (len(one) + len(other)) if one and other else 0.0


def bleu(one: Sequence[str], other: Sequence[str]) -> float:
    """BP · (p₁ p₂ p₃ p₄)^¼ of one sentence, pₙ the share of `one`'s runs of n words that `other` has, BP = exp(1 −
    |other| / |one|) where `one` is the shorter, else 1.

    Source: Papineni et al. 2002, "BLEU", section 2.3. Smoothing: for n > 1 one is added above and below (Lin and Och
    2004, "ORANGE"; smoothing 2 of Chen and Cherry 2014), because one sentence often has no run of four in common.
    Equal texts of fewer than four words have 1 as well: an order of which neither has a run is 1/1.
    """
    if not one or not other:
        return 0.0
    logs = 0.0
    for order in range(1, BLEU_ORDER + 1):
        mine = _runs(one, order)
        common, total = (mine & _runs(other, order)).total(), mine.total()
        if order > 1:
            common, total = common + 1, total + 1
        if not common:
            return 0.0
        logs += math.log(common / total) / BLEU_ORDER
    return math.exp(logs + min(0.0, 1 - len(other) / len(one)))


def chrf(one: str, other: str) -> float:
    """(1 + β²) P R / (β² P + R) with β = 2, P and R averaged over runs of one to six characters, white space left out.

    Source: Popović 2015, "chrF: character n-gram F-score for automatic MT evaluation", section 2. Orders of which
    either text is too short to have a run are left out of the average.
    """
    one, other = "".join(one.split()), "".join(other.split())
    orders = range(1, min(CHRF_ORDER, len(one), len(other)) + 1)
    if not orders:
        return 0.0
    precision = recall = 0.0
    for order in orders:
        mine, theirs = _runs(one, order), _runs(other, order)
        common = (mine & theirs).total()
        precision += common / mine.total() / len(orders)
        recall += common / theirs.total() / len(orders)
    if not precision:
        return 0.0
    return (1 + CHRF_BETA**2) * precision * recall / (CHRF_BETA**2 * precision + recall)


def common_subsequence(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest common subsequence.

    Source: Hyyrö 2004, "Bit-parallel LCS-length computation revisited": bit i of `row` is 0 where the row of the table
    rises at `other`'s place i.
    """
    places = _places(other)
    full = (1 << len(other)) - 1
    row = full
    for item in one:
        if matches := places.get(item, 0):
            both = row & matches
            row = ((row + both) | (row - both)) & full
    return len(other) - row.bit_count()


def edit_distance(one: Sequence[str], other: Sequence[str]) -> int:
    """Levenshtein's distance.

    Source: Myers 1999, "A fast bit-vector algorithm for approximate string matching", as Hyyrö 2003 has it for whole
    texts: bits of `up` and `down` say where a column of the table goes up or down by one from place to place.
    """
    if not one or not other:
        return max(len(one), len(other))
    places = _places(other)
    full, last = (1 << len(other)) - 1, 1 << (len(other) - 1)
    up, down, distance = full, 0, len(other)
    for item in one:
        matches = places.get(item, 0)
        diagonal = ((((matches & up) + up) ^ up) | matches | down) & full
        right_up, right_down = (down | ~(diagonal | up)) & full, up & diagonal
        distance += bool(right_up & last) - bool(right_down & last)
        right_up, right_down = (right_up << 1 | 1) & full, right_down << 1 & full
        up, down = (right_down | ~(diagonal | right_up)) & full, right_up & diagonal
    return distance


def _places(of: Sequence[str]) -> dict[str, int]:
    """For each item a number whose bits are the places it stands at."""
    found: dict[str, bytearray] = {}
    for place, item in enumerate(of):
        found.setdefault(item, bytearray(len(of) // 8 + 1))[place // 8] |= 1 << place % 8
    return {item: int.from_bytes(bits, "little") for item, bits in found.items()}


def _runs(of: Sequence[str], order: int) -> Counter[Any]:
    """How often each run of `order` items stands in it."""
    if isinstance(of, str):
        return Counter(of[start : start + order] for start in range(len(of) - order + 1))
    return Counter(zip(*(of[start:] for start in range(order)), strict=False))
