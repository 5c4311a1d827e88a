"""From steps that a reward found in a completion's text to rewards at its tokens, for process supervision."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from grpo_core.data.prompts import completion_text
from grpo_core.records.types import ComponentScore

_UNFINISHED = "\ufffd"
"""What a decoder puts for a character whose bytes are not all there yet."""


def completion_step_rewards(
    components: Mapping[str, ComponentScore],
    weights: Mapping[str, float],
    tokens: Sequence[int],
    tokenizer: Any,
    eos_ids: frozenset[int],
) -> list[tuple[int, float]]:
    """(index of a token, reward) of one scored completion, in order of index.

    A component with steps gives weight · value at the last token of each; one without gives weight · value at the
    completion's last token, the end token included. What falls on one token is added up. Components of weight 0 give
    nothing. When a component could not be scored, the whole completion earns 0, at its last token (on_error: zero).
    """
    last = len(tokens) - 1
    weighed = {name: component for name, component in components.items() if weights[name] != 0}
    if any(component.value is None for component in components.values()):
        return [(last, 0.0)]
    given: dict[int, float] = {}
    for name, component in weighed.items():
        if component.steps is None:
            rewards = [(last, component.value or 0.0)]
        else:
            positions = step_ends(
                tokens,
                [step.end for step in component.steps],
                lambda prefix: completion_text(tokenizer, prefix, eos_ids),
            )
            rewards = list(zip(positions, (step.value for step in component.steps), strict=True))
        for position, value in rewards:
            given[position] = given.get(position, 0.0) + weights[name] * value
    return sorted(given.items())


def step_ends(tokens: Sequence[int], ends: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[int]:
    """Index of each step's last token: the first at which the text so far covers the step.

    `ends`: characters of `decode(tokens)` up to and including each step. A token that continues past the end of a step
    belongs to it. A character whose bytes are spread over several tokens is covered by the last of them. Raises
    ValueError for an end that is not in the text.
    """
    if not ends:
        return []
    length = len(decode(tokens))
    if min(ends) < 1 or max(ends) > length:
        raise ValueError(f"steps end at characters {min(ends)} to {max(ends)} of a text of {length}")

    @cache
    def covered(position: int) -> int:
        return len(decode(tokens[: position + 1]).rstrip(_UNFINISHED))

    last = len(tokens) - 1
    return [bisect_left(range(last), end, key=covered) for end in ends]
