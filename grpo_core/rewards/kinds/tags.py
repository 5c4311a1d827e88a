"""tags: the completion is a sequence of tagged blocks, such as `<think>…</think><answer>…</answer>`, in any number.

Rewards the form only, whatever is inside. Tags that the sequence does not name are text. One pass over the text
and one over its blocks for each entry of the sequence.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Literal

from pydantic import Field

from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Kind, Params, ScoreRequest, always

_ENTRY = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_-]*)(?:(?P<sign>[?*+])|\{(?P<least>[0-9]+)(?P<most>,[0-9]*)?\})?")

Entry = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,39}([?*+]|\{[0-9]{1,4}(,[0-9]{0,4})?\})?$")]


class TagsParams(Params):
    sequence: Annotated[tuple[Entry, ...], Field(min_length=1, max_length=20)] = ("think", "answer")
    """Names of the tags in their order, each with how often its block comes there: `think` once, `note?` at most once,
    `note*` any number, `step+` at least once, `step{3}` three times, `step{2,5}` two to five, `step{2,}` two or
    more."""
    between: Literal["nothing", "whitespace", "text"] = "whitespace"
    """What may come before, between and after the blocks."""
    allow_empty: bool = False
    """A block with nothing but white space inside passes too."""
    pay: Literal["all", "share"] = "all"
    """all: 1 when the whole form is right, else 0. share: one part for each name whose blocks are closed and come as
    often as the sequence says, and one part for the whole form."""


@dataclass(frozen=True, slots=True)
class _Times:
    name: str
    least: int
    most: float


def faults(params: TagsParams) -> list[tuple[str, str]]:
    wrong = [entry for entry, times in zip(params.sequence, _entries(params), strict=True) if times.least > times.most]
    if wrong:
        return [("sequence", f"{wrong[0]} asks for more blocks than it allows")]
    if all(times.least == 0 for times in _entries(params)):
        return [("sequence", "an empty completion would pass: at least one tag must come at least once")]
    return []


def score(sample: ScoreRequest, params: TagsParams) -> ComponentScore:
    """1 when the form is right, else 0 (or a share) with the first thing that is wrong."""
    entries = _entries(params)
    names = sorted({times.name for times in entries})
    matches = list(re.finditer(f"<(/?)({'|'.join(names)})>", sample.completion))
    fault = _fault(sample.completion, matches, entries, params)
    if not fault or params.pay == "all":
        return ComponentScore(value=float(not fault), passed=not fault, detail=fault)
    right = sum(_counted(name, matches, entries) for name in names)
    return ComponentScore(value=right / (len(names) + 1), passed=False, detail=fault)


def _entries(params: TagsParams) -> list[_Times]:
    entries = []
    for entry in params.sequence:
        match = _ENTRY.fullmatch(entry)
        assert match is not None  # the field's pattern
        least = int(match["least"]) if match["least"] else 0 if match["sign"] in ("?", "*") else 1
        most: float = least if match["least"] else 1
        if match["sign"] in ("*", "+") or match["most"] == ",":
            most = float("inf")
        elif match["most"]:
            most = int(match["most"][1:])
        entries.append(_Times(match["name"], least, most))
    return entries


def _fault(text: str, matches: Sequence[re.Match[str]], entries: Sequence[_Times], params: TagsParams) -> str:
    """The first thing that is wrong; empty when nothing is."""
    end, blocks = 0, list[str]()
    for index in range(0, len(matches), 2):
        opening, closing = matches[index], matches[index + 1] if index + 1 < len(matches) else None
        if opening[1]:
            return f"{opening[0]} without <{opening[2]}> before it"
        if closing is None or (closing[1], closing[2]) != ("/", opening[2]):
            return f"<{opening[2]}> is not closed before " + ("the end" if closing is None else closing[0])
        if outside := _outside(text[end : opening.start()], params):
            return f"{outside} before {opening[0]}"
        if not params.allow_empty and not text[opening.end() : closing.start()].strip():
            return f"<{opening[2]}> is empty"
        end = closing.end()
        blocks.append(opening[2])
    if not _in_order(blocks, entries):
        shown_blocks = " ".join(blocks[:10]) + (" …" if len(blocks) > 10 else "")
        return f"blocks are {shown_blocks or 'none'}; expected {' '.join(params.sequence)}"
    if outside := _outside(text[end:], params):
        return f"{outside} after the last block"
    return ""


def _outside(text: str, params: TagsParams) -> str:
    if not text or params.between == "text":
        return ""
    if text.strip():
        return "text"
    return "white space" if params.between == "nothing" else ""


def _in_order(blocks: Sequence[str], entries: Sequence[_Times]) -> bool:
    """Whether the blocks are the sequence. For each entry the numbers of blocks that it may end after, from those that
    the one before it may end after: sums instead of trying, because trying takes exponential time."""
    count = len(blocks)
    reached = [True] + [False] * count
    for entry in entries:
        before = [0, *accumulate(reached)]
        run, after = 0, []  # run: how many blocks of this name end at `end`
        for end in range(count + 1):
            run = run + 1 if end and blocks[end - 1] == entry.name else 0
            first, last = max(end - run, end - min(entry.most, count)), end - entry.least
            after.append(last >= first and before[int(last) + 1] - before[int(first)] > 0)
        reached = after
    return reached[count]


def _counted(name: str, matches: Sequence[re.Match[str]], entries: Sequence[_Times]) -> bool:
    """Whether the blocks of one name are all closed, in turn, and as many as the sequence has in all."""
    mine = [match[1] for match in matches if match[2] == name]
    times = [entry for entry in entries if entry.name == name]
    in_turn = len(mine) % 2 == 0 and all(sign == ("/" if index % 2 else "") for index, sign in enumerate(mine))
    return in_turn and sum(entry.least for entry in times) <= len(mine) // 2 <= sum(entry.most for entry in times)


SPEC = Kind(
    "tags", TagsParams, "a sequence of tags of your own, each as often as you say", check=faults, reads_prefill=always
)
