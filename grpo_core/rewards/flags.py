"""What a reviewer should look at among a group's samples: rewards that the text may not deserve, and repetition.

Made by the trainer of the groups that are kept, so that nothing has to read a million texts to find them. Pure rules of
the text and its score; loads no torch.
"""

import re
from collections.abc import Iterator

from grpo_core.config.reward import RewardConfig
from grpo_core.data.near_duplicates import near_duplicates
from grpo_core.records.types import Group, Sample, SampleFlag
from grpo_core.rewards.kinds.language import language_of, look, script_share, word_share

LEAST_REASONING = 5
"""Words and numbers before the answer; with fewer, a completion has no reasoning."""
NEAR = 0.9
"""Jaccard similarity of two completions' word 3-grams from which the later one is a near-duplicate."""
LEAST_IN_LANGUAGE = 0.8
"""Share of the prompt's language, by letters and function words as the reward kind `language` measures it."""
LEAST_LETTERS = 40
"""With fewer letters in a prompt or a completion no language is looked for."""

_WORD = re.compile(r"\w+")
_TAG = re.compile(r"</?[A-Za-z][\w-]*>")
_ANSWER = re.compile(r"</think>|<answer>|\\boxed\s*\{|####")
"""Where reasoning ends and the answer begins."""


def flagged(group: Group, reward: RewardConfig) -> Group:
    """The group with the flags of each of its samples."""
    near = near_duplicates([sample.completion for sample in group.samples], words=3, share=NEAR)
    language = _language(group.prompt)
    samples = [
        sample.model_copy(update={"flags": tuple(_flags(sample, reward, near=index in near, language=language))})
        for index, sample in enumerate(group.samples)
    ]
    return group.model_copy(update={"samples": tuple(samples)})


def _flags(sample: Sample, reward: RewardConfig, *, near: bool, language: str | None) -> Iterator[SampleFlag]:
    rewarded = sample.reward is not None and sample.reward > 0
    if rewarded and not has_reasoning(sample.completion):
        yield "no_reasoning"
    if rewarded and _format_only(sample, reward):
        yield "format_only"
    if near:
        yield "near_duplicate"
    if language is not None and _leaves(sample.completion, language):
        yield "language_switch"


def has_reasoning(completion: str) -> bool:
    """Whether LEAST_REASONING words or numbers come before the answer: before the end of thinking, an answer tag, a
    box or ####, whichever comes first; in a text without them, anywhere."""
    mark = _ANSWER.search(completion)
    before = _TAG.sub(" ", completion[: mark.start()] if mark else completion)
    return sum(1 for _ in zip(range(LEAST_REASONING), _WORD.finditer(before), strict=False)) == LEAST_REASONING


def _format_only(sample: Sample, reward: RewardConfig) -> bool:
    """The reward comes from components other than the one that means right, which gave nothing."""
    if not sample.components:
        return False
    success = sample.components[reward.success_of(sample.components)]
    return success.error is None and not success.passed and not success.value


def _language(prompt: str) -> str | None:
    profile = look(prompt)
    return language_of(profile) if profile.letters >= LEAST_LETTERS else None


def _leaves(completion: str, language: str) -> bool:
    profile = look(completion)
    if profile.letters < LEAST_LETTERS:
        return False
    return script_share(profile, language) * word_share(profile, language) < LEAST_IN_LANGUAGE
