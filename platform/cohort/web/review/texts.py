"""Prompts and completions as a page shows them: in parts, cut to what a page can hold, and two of them compared.

Nothing is left out: parts put together are the text, and what is cut off is counted.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rapidfuzz.distance import LCSseq

from cohort.web.review.rendered import rendered
from grpo_core.config.kinds import ScoredConfig
from grpo_core.rewards.kinds.tags import TagsParams

PAGE_CHARACTERS = 64_000
"""Of all completions of a group that its page shows, about."""
LONGEST_PART = 4000
WINDOW = 50_000
"""Characters of one completion that its own page shows at once."""
FOLDED_FROM = 400
"""Characters of reasoning, and of a prompt, from which on it is folded."""
LONGEST_COMPARED = 10_000
"""Words, signs and spaces of a completion that are compared with another's."""

_TURNS = (
    # ChatML (Qwen and others), Llama 3, Gemma, Phi and Zephyr
    re.compile(r"<\|im_start\|>(?P<role>[a-z]+)\n(?P<text>.*?)(?P<end><\|im_end\|>\n?|\Z)", re.DOTALL),
    re.compile(
        r"<\|start_header_id\|>(?P<role>[a-z]+)<\|end_header_id\|>\n\n(?P<text>.*?)(?P<end><\|eot_id\|>|\Z)", re.DOTALL
    ),
    re.compile(r"<start_of_turn>(?P<role>[a-z]+)\n(?P<text>.*?)(?P<end><end_of_turn>\n?|\Z)", re.DOTALL),
    re.compile(r"<\|(?P<role>system|user|assistant)\|>\n?(?P<text>.*?)(?P<end><\|end\|>\n?|</s>\n?|\Z)", re.DOTALL),
)
"""How widespread chat templates write a turn."""


@dataclass(frozen=True)
class Part:
    """A piece of a completion: reasoning, answer, or text outside of both."""

    kind: Literal["text", "reasoning", "answer"]
    text: str
    """Without its tags, and cut."""
    length: int
    """Characters before it was cut."""
    opening: str = ""
    closing: str = ""
    """The tags as written; empty where the completion does not have them."""
    note: str = ""
    html: str | None = None
    """As Markdown, where that was wanted and can be had."""

    @property
    def folded(self) -> bool:
        return self.kind == "reasoning" and self.length >= FOLDED_FROM and not self.note

    @property
    def cut(self) -> bool:
        return len(self.text) < self.length


@dataclass(frozen=True)
class ReasoningTags:
    reasoning: str = "think"
    answer: str = "answer"


def reasoning_tags(config: ScoredConfig) -> ReasoningTags:
    """The first and the last tag that the run's reward asks for; those of DeepSeek-R1 where it asks for none."""
    for component in config.reward.components:
        if component.kind == "tags":
            names = [re.split(r"[?*+{]", entry)[0] for entry in TagsParams.model_validate(component.params).sequence]
            return ReasoningTags(names[0], names[-1]) if len(names) > 1 else ReasoningTags(answer=names[0])
    return ReasoningTags()


def completion_parts(
    completion: str, tags: ReasoningTags, *, prompt: str = "", most: int = LONGEST_PART, markdown: bool = False
) -> list[Part]:
    """The completion in order: reasoning is the first block of its tag, which the prompt may have opened, and the
    answer is the last block of its own after that. `most`: characters of each part that are shown."""
    parts, rest = _reasoning(completion, tags.reasoning, prompt)
    parts += _answer(rest, tags.answer)
    return [
        Part(
            part.kind,
            part.text[:most],
            len(part.text),
            part.opening,
            part.closing,
            part.note,
            rendered(part.text[:most]) if markdown else None,
        )
        for part in parts
        if part.text or part.opening or part.closing
    ]


def _reasoning(completion: str, tag: str, prompt: str) -> tuple[list[Part], str]:
    """(parts up to the end of the reasoning, the text after it)."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    start, first_end = completion.find(opening), completion.find(closing)
    by_prompt = prompt.rstrip().endswith(opening)
    if start < 0 and first_end < 0 and not by_prompt:
        return [], completion
    parts, note = [], ""
    if by_prompt or start < 0 or 0 <= first_end < start:
        begin, written = 0, ""
        note = "" if by_prompt else f"{closing} closes what was never opened"
    else:
        begin, written = start + len(opening), opening
        parts.append(Part("text", completion[:start], start))
    end = completion.find(closing, begin)
    if end < 0:
        text = completion[begin:]
        return [*parts, Part("reasoning", text, len(text), written, "", "never closed")], ""
    text = completion[begin:end]
    return [*parts, Part("reasoning", text, len(text), written, closing, note)], completion[end + len(closing) :]


def _answer(text: str, tag: str) -> list[Part]:
    opening, closing = f"<{tag}>", f"</{tag}>"
    end = text.rfind(closing)
    start = text.rfind(opening, 0, end) if end >= 0 else text.rfind(opening)
    if start < 0:
        return [Part("text", text, len(text))]
    inner, after = (text[start + len(opening) :], "") if end < 0 else (text[start + len(opening) : end], text[end:])
    answer = Part("answer", inner, len(inner), opening, closing if end >= 0 else "", "" if end >= 0 else "never closed")
    after = after.removeprefix(closing)
    return [Part("text", text[:start], start), answer, Part("text", after, len(after))]


def shown_characters(samples: int) -> int:
    """Of each part of a completion, in a group of so many."""
    return max(500, min(LONGEST_PART, PAGE_CHARACTERS // max(1, samples)))


@dataclass(frozen=True)
class Turn:
    role: str
    """Empty for what the template wrote outside of turns."""
    text: str
    length: int


def prompt_turns(prompt: str) -> list[Turn]:
    """The prompt's turns, where it is written in a chat template that is known here; else one without a role."""
    for pattern in _TURNS:
        turns, position = [], 0
        for match in pattern.finditer(prompt):
            if between := prompt[position : match.start()].strip():
                turns.append(("", between))
            turns.append((match["role"], match["text"]))
            position = match.end()
        if turns:
            if after := prompt[position:].strip():
                turns.append(("", after))
            return [Turn(role, text[:LONGEST_PART], len(text)) for role, text in turns]
    return [Turn("", prompt[:WINDOW], len(prompt))]


def question_of(turns: list[Turn]) -> str:
    """What the last user said; all of a prompt without turns."""
    return next((turn.text for turn in reversed(turns) if turn.role in ("user", "human")), turns[0].text)


@dataclass(frozen=True)
class Piece:
    """Words that two completions share, or that one alone has."""

    kind: Literal["both", "first", "second"]
    text: str


def difference(first: str, second: str) -> tuple[list[Piece], bool]:
    """(the pieces in order, whether those beyond LONGEST_COMPARED were left out). By the longest common subsequence
    of words, signs and spaces."""
    words = [re.findall(r"\s+|\w+|[^\w\s]", text) for text in (first, second)]
    own, other = (every[:LONGEST_COMPARED] for every in words)
    pieces = []
    for step in LCSseq.opcodes(own, other):
        if step.tag == "equal":
            pieces.append(Piece("both", "".join(own[step.src_start : step.src_end])))
            continue
        pieces.append(Piece("first", "".join(own[step.src_start : step.src_end])))
        pieces.append(Piece("second", "".join(other[step.dest_start : step.dest_end])))
    return _merged(piece for piece in pieces if piece.text), any(len(every) > LONGEST_COMPARED for every in words)


def _merged(pieces: Iterable[Piece]) -> list[Piece]:
    """Neighbours of a kind as one; of a change the first one's words before the second's."""
    merged: list[Piece] = []
    changed: dict[str, str] = {"first": "", "second": ""}
    for piece in [*pieces, Piece("both", "")]:
        if piece.kind != "both":
            changed[piece.kind] += piece.text
            continue
        merged += [Piece("first", changed["first"])] if changed["first"] else []
        merged += [Piece("second", changed["second"])] if changed["second"] else []
        changed = {"first": "", "second": ""}
        merged += [piece] if piece.text else []
    return merged
