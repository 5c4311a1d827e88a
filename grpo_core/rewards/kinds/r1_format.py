"""r1_format: the completion is `<think>…</think><answer>…</answer>` and nothing else (DeepSeek-R1, 2025, section 2.2).

Rewards the form only, whatever is inside: the kind tags with its default sequence.
"""

from typing import Literal

from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Kind, Params, ScoreRequest, always
from grpo_core.rewards.kinds import tags


class R1FormatParams(Params):
    allow_whitespace: bool = True
    """White space before, between and after the two blocks does not matter."""
    allow_empty: bool = False
    """An empty `<think></think>` or `<answer></answer>` passes too."""


def score(sample: ScoreRequest, params: R1FormatParams) -> ComponentScore:
    """1 when the form is right, else 0 with the first thing that is wrong."""
    between: Literal["whitespace", "nothing"] = "whitespace" if params.allow_whitespace else "nothing"
    return tags.score(sample, tags.TagsParams(between=between, allow_empty=params.allow_empty))


SPEC = Kind(
    "r1_format", R1FormatParams, "think and answer tags, as DeepSeek-R1, and nothing else", reads_prefill=always
)
