"""r1_format: the completion is `<think>…</think><answer>…</answer>` and nothing else (DeepSeek-R1, 2025, section 2.2).

Pays for the form only, whatever stands inside.
"""

from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Kind, Params, Unscored

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")


class R1FormatParams(Params):
    allow_whitespace: bool = True
    """White space before, between and after the two blocks does not matter."""
    allow_empty: bool = False
    """An empty `<think></think>` or `<answer></answer>` passes too."""


def score(sample: Unscored, params: R1FormatParams) -> ComponentScore:
    """1 when the form is right, else 0 with the first thing that is wrong."""
    fault = _fault(sample.completion, params)
    return ComponentScore(value=0.0 if fault else 1.0, passed=not fault, detail=fault)


def _fault(completion: str, params: R1FormatParams) -> str:
    rest = completion
    pieces = []
    for tag in _TAGS:
        before, found, rest = rest.partition(tag)
        if not found or any(other in before for other in _TAGS):
            return f"{tag} is missing or out of order"
        pieces.append(before)
    if any(tag in rest for tag in _TAGS):
        return "a tag is used twice"
    lead, thought, between, answer = pieces
    for outside, where in ((lead, "before <think>"), (between, "before <answer>"), (rest, "after </answer>")):
        if outside.strip() or (outside and not params.allow_whitespace):
            return f"text {where}" if outside.strip() else f"white space {where}"
    if not params.allow_empty and not (thought.strip() and answer.strip()):
        return "<think> is empty" if not thought.strip() else "<answer> is empty"
    return ""


SPEC = Kind(
    "r1_format",
    R1FormatParams,
    "here",
    __name__,
    "think and answer tags, as DeepSeek-R1, and nothing else",
)
