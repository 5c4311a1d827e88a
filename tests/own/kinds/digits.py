"""digits: the share of digits in a completion."""

from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Kind, Params, ScoreRequest


class DigitsParams(Params):
    most: float = 1.0
    """What digits alone are paid."""


def score(sample: ScoreRequest, params: DigitsParams) -> ComponentScore:
    """0 to `most`."""
    share = sum(letter.isdigit() for letter in sample.completion) / max(1, len(sample.completion))
    return ComponentScore(value=params.most * share, passed=share == 1, detail=f"{share:.2f} digits")


SPEC = Kind("digits", DigitsParams, "digits, whichever they are")
