"""regex: a pattern of the reward's author is found in the text, or is not.

Some patterns take exponential time on some texts, so this kind runs in a subprocess and each pattern has a time limit.
A pattern is data: the package regex executes no code in it.
"""

from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field

from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Extract, Kind, Params, ScoreRequest, always, extract_answer, missing_answer, shown
from grpo_core.rewards.scoring import at_fault

MAX_PATTERN_CHARS = 2000


class RegexParams(Params):
    pattern: Annotated[str, Field(min_length=1, max_length=MAX_PATTERN_CHARS)]
    """In the syntax of Python's re, and what the package regex adds to it."""
    match: Literal["anywhere", "start", "all"] = "anywhere"
    """anywhere: somewhere in the text. start: at its beginning. all: the whole text, white space at the ends left
    out."""
    extract: Extract = "whole"
    """The part that is looked at: whole for the completion itself, or answer_tag, hashes, boxed, last_number."""
    absent: bool = False
    """Reward when the pattern is not found: for words that must not be said."""
    ignore_case: bool = False
    """Capital and small letters are equal."""
    multiline: bool = False
    """`^` and `$` stand for the beginning and end of each line, too."""
    dot_all: bool = False
    """`.` stands for a newline, too."""
    seconds: Annotated[float, Field(gt=0, le=10)] = 1.0
    """Longest time for one text; beyond it the completion is scored 0, as one that does not match."""


def faults(params: RegexParams) -> list[tuple[str, str]]:
    import regex

    try:
        _compiled(params)
    except (regex.error, RecursionError, OverflowError) as error:
        return [("pattern", _pattern_fault(params.pattern, error))]
    return []


def prepare() -> None:
    import regex

    assert regex


def score(sample: ScoreRequest, params: RegexParams) -> ComponentScore:
    """1 or 0."""
    text = extract_answer(sample.completion, params.extract)
    if text is None:
        return ComponentScore(value=0.0, passed=False, detail=missing_answer(params.extract))
    pattern = _compiled(params)
    look = {"anywhere": pattern.search, "start": pattern.match, "all": pattern.fullmatch}[params.match]
    try:
        match = look(text.strip() if params.match == "all" else text, timeout=params.seconds)
    except TimeoutError:
        took = f"the pattern took over {params.seconds:g} s on {len(text):,} characters"
        return at_fault("timeout", f"{took}; write it without nested repeats")
    passed = (match is None) is params.absent
    return ComponentScore(value=float(passed), passed=passed, detail=shown(match[0]) if match else "not found")


@lru_cache(maxsize=256)
def _compiled(params: RegexParams) -> Any:
    import regex

    flags = {
        regex.IGNORECASE: params.ignore_case,
        regex.MULTILINE: params.multiline,
        regex.DOTALL: params.dot_all,
    }
    return regex.compile(params.pattern, sum(flag for flag, on in flags.items() if on))


def _pattern_fault(pattern: str, error: Exception) -> str:
    """What is wrong, and where."""
    position = getattr(error, "pos", None)
    if not isinstance(position, int):
        return f"is no pattern: {type(error).__name__}: {error}"
    line = pattern.count("\n", 0, position) + 1
    column = position - pattern.rfind("\n", 0, position)
    return f"is no pattern: {error.msg} (line {line}, column {column})"  # type: ignore[attr-defined]


SPEC = Kind(
    "regex", RegexParams, "a pattern is in the text, or is not", "subprocess", check=faults, reads_prefill=always
)
