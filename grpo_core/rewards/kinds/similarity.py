"""similarity: how close the answer is to a reference text, by one of seven measures.

Closeness of text is not truth: a text that says the opposite in the same words is close. The measures are in
`text_measures.py`, each with its source; those by words take words as `grpo_core.data.plain_words` has them. Time is
linear in the answer for a given reference.
"""

from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field

from grpo_core.data.plain_words import units
from grpo_core.data.problem import Problem
from grpo_core.errors import RewardError
from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Kind, Params, Unscored, extract_answer, missing_answer, shown
from grpo_core.rewards.kinds import text_measures

MAX_REFERENCE_CHARS = 20_000
MAX_ANSWER_CHARS = 200_000


class SimilarityParams(Params):
    measure: Literal["ratio", "edit", "token_f1", "rouge_2", "rouge_l", "bleu", "chrf"] = "rouge_l"
    """ratio: characters of the longest common subsequence. edit: one minus the edit distance per character. token_f1:
    words in common. rouge_2: pairs of words in common. rouge_l: longest common subsequence of words. bleu: runs of one
    to four words. chrf: runs of one to six characters."""
    extract: Literal["answer_tag", "hashes", "boxed", "whole"] = "answer_tag"
    """Where the answer stands: answer_tag `<answer>…</answer>`, hashes `#### …`, boxed `\\boxed{…}`, or whole for the
    completion itself."""
    column: Annotated[str, Field(max_length=100)] = ""
    """Field of the problem with the reference: a text, or a list of texts of which the closest counts. Empty: the
    problem's answer."""
    ignore_case: bool = True
    """Capital and small letters are equal; measures by words take them as equal in any case."""
    least: Annotated[float, Field(ge=0, le=1)] = 0.0
    """A closeness below this is paid 0."""
    passes_from: Annotated[float, Field(ge=0, le=1)] = 0.5
    """The closeness from which an answer counts as passed; it is paid its closeness all the same."""


def columns(params: SimilarityParams) -> frozenset[str]:
    return frozenset({params.column} if params.column else ())


def score(sample: Unscored, params: SimilarityParams) -> ComponentScore:
    """0 to 1. Raises RewardError when the problem has no reference text."""
    references = _references(sample.problem, params)
    answer = extract_answer(sample.completion, params.extract)
    if answer is None:
        return ComponentScore(value=0.0, passed=False, detail=missing_answer(params.extract))
    if len(answer) > MAX_ANSWER_CHARS:
        told = f"{len(answer):,} characters, more than {MAX_ANSWER_CHARS:,}"
        return ComponentScore(value=0.0, passed=False, detail=told)
    found = max(_close(answer, reference, params) for reference in references)
    value = found if found >= params.least else 0.0
    return ComponentScore(value=value, passed=value >= params.passes_from, detail=f"{found:.3f} {params.measure}")


def _close(answer: str, reference: str, params: SimilarityParams) -> float:
    if params.measure in ("ratio", "edit", "chrf"):
        plain = " ".join(answer.split())
        given = plain.casefold() if params.ignore_case else plain
        wanted = _characters(reference, ignore_case=params.ignore_case)
        measure = {"ratio": text_measures.ratio, "edit": text_measures.edit, "chrf": text_measures.chrf}[params.measure]
        return measure(given, wanted)
    words, wanted_words = units(answer), _words(reference)
    match params.measure:
        case "token_f1":
            return text_measures.ngram_f1(words, wanted_words, 1)
        case "rouge_2":
            return text_measures.ngram_f1(words, wanted_words, 2)
        case "rouge_l":
            return text_measures.rouge_l(words, wanted_words)
    return text_measures.bleu(words, wanted_words)


@lru_cache(maxsize=1024)
def _words(reference: str) -> tuple[str, ...]:
    return tuple(units(reference))


@lru_cache(maxsize=1024)
def _characters(reference: str, *, ignore_case: bool) -> str:
    plain = " ".join(reference.split())
    return plain.casefold() if ignore_case else plain


def _references(problem: Problem, params: SimilarityParams) -> list[str]:
    found: Any = problem.meta.get(params.column) if params.column else problem.answer
    texts: list[str] = found if isinstance(found, list) else [found]
    where = repr(params.column) if params.column else "the reference answer"
    if not texts or not all(isinstance(one, str) and one.strip() for one in texts):
        raise RewardError(f"problem {problem.id}: {where} must be a text, or a list of texts, none of them empty")
    if longest := max((one for one in texts if len(one) > MAX_REFERENCE_CHARS), key=len, default=""):
        raise RewardError(
            f"problem {problem.id}: {where} holds {len(longest):,} characters ({shown(longest[:40])}); at most "
            f"{MAX_REFERENCE_CHARS:,} can be compared"
        )
    if params.measure not in ("ratio", "edit", "chrf") and (wordless := [one for one in texts if not _words(one)]):
        raise RewardError(f"problem {problem.id}: {where} holds no words: {shown(wordless[0])!r}")
    return texts


SPEC = Kind(
    "similarity",
    SimilarityParams,
    "here",
    __name__,
    "closeness to a reference text: ROUGE-L, BLEU, chrF, F1 of words, edit distance",
    columns=columns,
)
