"""Runs a rule on one sample and turns whatever it raises into an error of that sample, in any process."""

import math
import time
import traceback
from dataclasses import replace
from pathlib import Path

from grpo_core.errors import RewardError
from grpo_core.records.types import ComponentScore, ErrorClass
from grpo_core.rewards.base import Kind, Params, ScoreRequest, with_each_answer
from grpo_core.text import UNSTORABLE

_ROOT = str(Path(__file__).resolve().parents[2])
_FRAMES = 8
"""Innermost frames that a trace keeps."""


def ruled(kind: Kind, params: Params, sample: ScoreRequest) -> ComponentScore:
    """The rule's score of the sample, or the error that it raised. Raises nothing itself. Of several reference answers
    the one that the completion fits best counts."""
    began = time.perf_counter()
    try:
        score = _best(kind, params, sample)
    except RewardError as error:
        score = failed("sample", f"{type(error).__name__}: {error}")
    except MemoryError:
        score = at_fault("memory", "took more memory than scoring one sample may take")
    except Exception as error:  # noqa: BLE001 - a rule may raise anything; the error policy decides
        score = failed("verifier", f"{type(error).__name__}: {error}", trace=_trace(error))
    return score.model_copy(update={"seconds": time.perf_counter() - began})


def _best(kind: Kind, params: Params, sample: ScoreRequest) -> ComponentScore:
    rule = kind.rule()
    if not sample.problem.other_answers or not kind.answers(params):
        return rule(sample, params)
    scores = [rule(replace(sample, problem=problem), params) for problem in with_each_answer(sample.problem)]
    return max(scores, key=lambda score: (bool(score.passed), -math.inf if score.value is None else score.value))


def at_fault(kind: ErrorClass, what: str, *, seconds: float = 0.0) -> ComponentScore:
    """The score 0 of a completion that made its scoring end without a result. It is no error: to hang must not score
    better than to be wrong. The class is kept, to be counted."""
    return ComponentScore(value=0.0, passed=False, detail=f"scored 0: {what}", error_class=kind, seconds=seconds)


def failed(kind: ErrorClass, error: str, *, trace: str = "", seconds: float = 0.0) -> ComponentScore:
    """The score of a sample that could not be scored, in text that a record can hold."""
    return ComponentScore(
        value=None,
        error=UNSTORABLE.sub("\ufffd", error),
        error_class=kind,
        traceback=UNSTORABLE.sub("\ufffd", trace),
        seconds=seconds,
    )


def _trace(error: Exception) -> str:
    """Where a rule of ours raised: without the folders of this machine."""
    frames = traceback.extract_tb(error.__traceback__)[1:][-_FRAMES:]
    lines = (f"{frame.filename.removeprefix(_ROOT + '/')}, line {frame.lineno}, in {frame.name}" for frame in frames)
    return "\n".join(lines)
