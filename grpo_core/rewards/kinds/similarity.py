"""similarity: how close the answer is to a reference text, by one of seven measures.

Closeness of text is not truth: a text that says the opposite in the same words is close. Alignments are rapidfuzz's;
the measures on runs of words and characters are small and written here, each with its source. All are 0 to 1, 1 for
equal texts and 0 where nothing is in common. Words are the units of `grpo_core.data.plain_words`. Time is linear in the
answer for a given reference. rapidfuzz is imported at the first need.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Annotated, Any, Literal

from pydantic import Field

from grpo_core.data.plain_words import units
from grpo_core.data.problem import Problem
from grpo_core.errors import RewardError
from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import (
    Column,
    Kind,
    Params,
    ScoreRequest,
    compares_answer,
    extract_answer,
    missing_answer,
    reference_texts,
    shown,
)

MAX_REFERENCE_CHARS = 20_000
MAX_ANSWER_CHARS = 200_000
CHRF_ORDER, CHRF_BETA = 6, 2.0
BLEU_ORDER = 4


class SimilarityParams(Params):
    measure: Literal["ratio", "edit", "token_f1", "rouge_2", "rouge_l", "bleu", "chrf"] = "rouge_l"
    """ratio: characters of the longest common subsequence. edit: one minus the edit distance per character. token_f1:
    words in common. rouge_2: pairs of words in common. rouge_l: longest common subsequence of words. bleu: runs of one
    to four words. chrf: runs of one to six characters."""
    extract: Literal["answer_tag", "hashes", "boxed", "whole"] = "answer_tag"
    """Where the answer is: answer_tag `<answer>…</answer>`, hashes `#### …`, boxed `\\boxed{…}`, or whole for the
    completion itself."""
    column: Column = ""
    """Field of the problem with the reference: a text, or a list of texts of which the closest counts. Empty: the
    problem's answer."""
    ignore_case: bool = True
    """Capital and small letters are equal; measures by words take them as equal in any case."""
    least: Annotated[float, Field(ge=0, le=1)] = 0.0
    """A closeness below this is scored 0."""
    passes_from: Annotated[float, Field(ge=0, le=1)] = 0.5
    """The closeness from which an answer counts as passed; its value is its closeness in any case."""


def score(sample: ScoreRequest, params: SimilarityParams) -> ComponentScore:
    """0 to 1. Raises RewardError when the problem has no reference text."""
    references = _references(sample.problem, params)
    answer = extract_answer(sample.completion, params.extract)
    if answer is None:
        return ComponentScore(value=0.0, passed=False, detail=missing_answer(params.extract))
    if len(answer) > MAX_ANSWER_CHARS:
        detail = f"{len(answer):,} characters, more than {MAX_ANSWER_CHARS:,}"
        return ComponentScore(value=0.0, passed=False, detail=detail)
    closeness = max(_closenesses(answer, references, params))
    value = closeness if closeness >= params.least else 0.0
    return ComponentScore(value=value, passed=value >= params.passes_from, detail=f"{closeness:.3f} {params.measure}")


def ratio(answer: Sequence[str], reference: Sequence[str]) -> float:
    """2 · LCS / (length + length); LCS is the length of the longest common subsequence.

    By words it is ROUGE-L with β = 1: Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries", section 3.1.
    """
    from rapidfuzz.distance import LCSseq

    lengths = len(answer) + len(reference)
    return 2 * LCSseq.similarity(answer, reference) / lengths if lengths else 1.0


def edit(answer: str, reference: str) -> float:
    """1 − distance / length of the longer one; distance is Levenshtein's (insertions, deletions, replacements)."""
    from rapidfuzz.distance import Levenshtein

    return Levenshtein.normalized_similarity(answer, reference)


def ngram_f1(answer: Sequence[str], reference: Sequence[str], order: int) -> float:
    """2PR / (P + R), P and R the shares of each text's runs of `order` words that the other has, as often as it has
    them.

    With order 1 it is the F1 of SQuAD (Rajpurkar et al. 2016, arXiv 1606.05250, section 6.1) and ROUGE-1; with 2
    ROUGE-2 (Lin 2004, section 2), each with β = 1.
    """
    given, expected = _runs(answer, order), _runs(reference, order)
    common = (given & expected).total()
    return 2 * common / (given.total() + expected.total()) if common else 0.0


def bleu(answer: Sequence[str], reference: Sequence[str]) -> float:
    """BP · (p₁ p₂ p₃ p₄)^¼ of one sentence, pₙ the share of the answer's runs of n words that the reference has, BP =
    exp(1 − |reference| / |answer|) where the answer is the shorter, else 1.

    Source: Papineni et al. 2002, "BLEU", section 2.3. Smoothing: for n > 1 one is added above and below (Lin and Och
    2004, "ORANGE"; smoothing 2 of Chen and Cherry 2014), because one sentence often has no run of four in common.
    Equal texts of fewer than four words have 1 as well: an order of which neither has a run is 1/1.
    """
    if not answer or not reference:
        return 0.0
    logs = 0.0
    for order in range(1, BLEU_ORDER + 1):
        given = _runs(answer, order)
        common, total = (given & _runs(reference, order)).total(), given.total()
        if order > 1:
            common, total = common + 1, total + 1
        if not common:
            return 0.0
        logs += math.log(common / total) / BLEU_ORDER
    return math.exp(logs + min(0.0, 1 - len(reference) / len(answer)))


def chrf(answer: str, reference: str) -> float:
    """(1 + β²) P R / (β² P + R) with β = 2, P and R averaged over runs of one to six characters, white space left out.

    Source: Popović 2015, "chrF: character n-gram F-score for automatic MT evaluation", section 2. Orders of which
    either text is too short to have a run are left out of the average.
    """
    answer, reference = "".join(answer.split()), "".join(reference.split())
    orders = range(1, min(CHRF_ORDER, len(answer), len(reference)) + 1)
    precision = recall = 0.0
    for order in orders:
        given, expected = _runs(answer, order), _runs(reference, order)
        common = (given & expected).total()
        precision += common / given.total() / len(orders)
        recall += common / expected.total() / len(orders)
    if not precision:
        return 0.0
    return (1 + CHRF_BETA**2) * precision * recall / (CHRF_BETA**2 * precision + recall)


_BY_CHARACTERS: dict[str, Callable[[str, str], float]] = {"ratio": ratio, "edit": edit, "chrf": chrf}
_BY_WORDS: dict[str, Callable[[Sequence[str], Sequence[str]], float]] = {
    "token_f1": partial(ngram_f1, order=1),
    "rouge_2": partial(ngram_f1, order=2),
    "rouge_l": ratio,
    "bleu": bleu,
}


def _closenesses(answer: str, references: Sequence[str], params: SimilarityParams) -> list[float]:
    if by_characters := _BY_CHARACTERS.get(params.measure):
        given, *expected = (" ".join(text.split()) for text in (answer, *references))
        if params.ignore_case:
            given, expected = given.casefold(), [text.casefold() for text in expected]
        return [by_characters(given, text) for text in expected]
    words = units(answer)
    return [_BY_WORDS[params.measure](words, _words(reference)) for reference in references]


def _runs(items: Sequence[str], order: int) -> Counter[Any]:
    """How often each run of `order` items is in them."""
    if isinstance(items, str):
        return Counter(items[start : start + order] for start in range(len(items) - order + 1))
    return Counter(zip(*(items[start:] for start in range(order)), strict=False))


@lru_cache(maxsize=1024)
def _words(reference: str) -> tuple[str, ...]:
    return tuple(units(reference))


def _references(problem: Problem, params: SimilarityParams) -> list[str]:
    texts = reference_texts(problem, params.column)
    where = repr(params.column) if params.column else "the reference answer"
    if longest := max((text for text in texts if len(text) > MAX_REFERENCE_CHARS), key=len, default=""):
        raise RewardError(
            f"problem {problem.id}: {where} holds {len(longest):,} characters ({shown(longest[:40])}); at most "
            f"{MAX_REFERENCE_CHARS:,} can be compared"
        )
    if params.measure in _BY_WORDS and (wordless := [text for text in texts if not _words(text)]):
        raise RewardError(f"problem {problem.id}: {where} holds no words: {shown(wordless[0])!r}")
    return texts


SPEC = Kind(
    "similarity",
    SimilarityParams,
    "closeness to a reference text: ROUGE-L, BLEU, chrF, F1 of words, edit distance",
    answers=compares_answer,
)
