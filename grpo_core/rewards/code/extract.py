"""The program in a completion: one pass over its lines, executes nothing."""

from typing import Literal

from grpo_core.rewards.base import extract_answer

CodeExtract = Literal["fenced", "whole", "answer_tag"]
_PYTHON = frozenset({"python", "python3", "py", "py3"})


def extract_code(completion: str, how: CodeExtract) -> str | None:
    """fenced: the last closed block between lines of ``` that is marked as Python; where none is marked, the last one
    without a mark. answer_tag: inside the last `<answer>…</answer>`, without a fence around it. whole: all of it.
    None when there is no such place or it is empty."""
    match how:
        case "whole":
            code: str | None = completion
        case "answer_tag":
            inside = extract_answer(completion, "answer_tag")
            code = inside if inside is None or "```" not in inside else _last_fenced(inside)
        case "fenced":
            code = _last_fenced(completion)
    return code if code is not None and code.strip() else None


def _last_fenced(text: str) -> str | None:
    marked = unmarked = mark = None
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        stripped = line.strip()
        if mark is None:
            if stripped.startswith("```"):
                mark, lines = (stripped[3:].split() or [""])[0].lower(), []
        elif stripped == "```":
            block = "".join(lines)
            if mark in _PYTHON:
                marked = block
            elif not mark:
                unmarked = block
            mark = None
        else:
            lines.append(line)
    return marked if marked is not None else unmarked
