"""Runs a rule on one sample and turns whatever it raises into an error of that sample, in any process."""

import time
import traceback
from pathlib import Path

from grpo_core.errors import RewardError
from grpo_core.records.types import ComponentScore, ErrorClass
from grpo_core.rewards.base import Kind, Params, ScoreRequest
from grpo_core.text import UNSTORABLE

_ROOT = str(Path(__file__).resolve().parents[2])
_FRAMES = 8
"""Innermost frames that a trace keeps."""


def ruled(kind: Kind, params: Params, sample: ScoreRequest) -> ComponentScore:
    """The rule's score of the sample, or the error that it raised. Raises nothing itself."""
    began = time.perf_counter()
    try:
        score = kind.rule()(sample, params)
    except RewardError as error:
        score = failed("sample", f"{type(error).__name__}: {error}")
    except MemoryError:
        score = failed("memory", "MemoryError: took more memory than scoring one sample may take")
    except Exception as error:  # noqa: BLE001 - a rule may raise anything; the error policy decides
        score = failed("verifier", f"{type(error).__name__}: {error}", trace=_trace(error))
    return score.model_copy(update={"seconds": time.perf_counter() - began})


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
