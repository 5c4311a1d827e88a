"""soft_overlong: nothing for a completion well within the limit, down to −1 near and beyond it.

Source: DAPO, arXiv 2503.14476, equation 13. The config's `algorithm.overlong` adds the same to the reward of a whole
run; this kind is for a rubric that has it as a named component, with its own limits.
"""

from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Kind, Params, ScoreRequest
from grpo_core.specs.fields import Count


class SoftOverlongParams(Params):
    max_tokens: Count = 20_480
    """The limit: here and beyond, the value is −1. At most `sampling.max_completion_tokens`, or it is never reached."""
    buffer_tokens: Count = 4_096
    """How long before the limit it begins."""


def faults(params: SoftOverlongParams) -> list[tuple[str, str]]:
    if params.buffer_tokens > params.max_tokens:
        return [("buffer_tokens", f"must be at most max_tokens, which is {params.max_tokens}")]
    return []


def score(sample: ScoreRequest, params: SoftOverlongParams) -> ComponentScore:
    """−1 to 0. Raises RewardError where the completion's tokens are not known."""
    tokens = sample.known_tokens()
    value = soft_overlong_punishment(tokens, max_tokens=params.max_tokens, buffer_tokens=params.buffer_tokens)
    detail = f"{tokens:,} of {params.max_tokens:,} tokens"
    return ComponentScore(value=value, passed=value == 0.0, detail=detail)


def soft_overlong_punishment(tokens: int, *, max_tokens: int, buffer_tokens: int) -> float:
    """0 up to `max_tokens − buffer_tokens`, from there down in a straight line to −1 at `max_tokens`, and −1 beyond.

    To be multiplied by `overlong.penalty` and added to the reward. Source: DAPO, arXiv 2503.14476, equation 13.
    """
    free = max_tokens - buffer_tokens
    if tokens <= free:
        return 0.0
    return max((free - tokens) / buffer_tokens, -1.0)


SPEC = Kind(
    "soft_overlong", SoftOverlongParams, "nothing; takes away up to 1 near the limit of tokens (DAPO)", check=faults
)
