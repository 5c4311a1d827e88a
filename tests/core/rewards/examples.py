"""Runs the worked examples of the pages in docs/rewards as they stand, so that no page shows what is not so.

An example is a block marked `yaml reward` and, after it, blocks marked `completion`:

    ```yaml reward
    reward:
      components:
        - {name: right, kind: numeric}
    problem: {prompt: "what is 37 + 45?", answer: "82"}
    ```

    ```completion
    <answer>82</answer>
    → 1: 82
    ```

`reward` is what a config's `reward` is. `problem` has prompt and answer, both may be left out, and any further fields,
which become the problem's meta. The last line of a completion is an arrow and the reward that the whole rubric gives,
to the decimals written; the lines above it, without the newline before the arrow, are the completion. It goes on with

    → 0.5 at 18432 tokens       the completion's tokens, where a kind counts them
    → 1: 82                     the first component's detail, all of it, or its beginning followed by …
    → error sample              no reward, with the class of the first component's error; a colon and the error's
                                beginning may follow
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from grpo_core.config import RewardConfig
from grpo_core.data import Problem
from grpo_core.rewards import Rubric, Runner, Scored
from grpo_core.rewards.base import Context, Unscored

PAGES = Path(__file__).resolve().parents[3] / "docs" / "rewards"

_ARROW = re.compile(
    r"→ (?:(?P<value>[-−]?[0-9]+(?:\.(?P<decimals>[0-9]+))?)|error (?P<error>[a-z]+))"
    r"(?: at (?P<tokens>[0-9]+) tokens)?(?:: (?P<detail>.+))?"
)


@dataclass(frozen=True)
class Shown:
    """One completion with what the page says of it."""

    where: str
    completion: str
    tokens: int | None
    value: float | None
    decimals: int
    error: str | None
    detail: str | None


@dataclass(frozen=True)
class Example:
    where: str
    """Page and line, for messages."""
    reward: RewardConfig
    problem: Problem
    shown: tuple[Shown, ...]

    @property
    def kinds(self) -> set[str]:
        return {component.kind for component in self.reward.components}


def examples(page: Path) -> list[Example]:
    """All of the page, in order. Raises ValueError where a block is not as the docstring above has it."""
    found: list[tuple[str, dict[str, Any], list[Shown]]] = []
    for info, where, text in _blocks(page):
        if info == "yaml reward":
            found.append((where, yaml.safe_load(text), []))
        elif info == "completion":
            if not found:
                raise ValueError(f"{where}: a completion before any reward")
            found[-1][2].append(_shown(where, text))
    return [
        Example(where, RewardConfig.model_validate(block["reward"]), _problem(block.get("problem", {})), tuple(shown))
        for where, block, shown in found
    ]


def run(example: Example, context: Context | None = None) -> None:
    """Scores the example's completions and compares each with what the page says."""
    assert example.shown, f"{example.where}: no completion follows"
    limits = example.reward.limits.model_copy(update={"workers": 1})  # processes take longer to start than to score
    with Runner(Rubric(example.reward.model_copy(update={"limits": limits})), context) as runner:
        scored = runner.score([Unscored(example.problem, one.completion, one.tokens) for one in example.shown])
    for one, got in zip(example.shown, scored, strict=True):
        compare(one, got)


def compare(one: Shown, got: Scored) -> None:
    first = next(iter(got.components.values()))
    message = f"{one.where}: reward {got.reward}, {first!r}"
    if one.error is not None:
        assert (got.reward, first.error_class) == (None, one.error), message
        assert one.detail is None or (first.error or "").startswith(one.detail), message
        return
    assert got.reward is not None, message
    assert one.value is not None
    assert abs(got.reward - one.value) <= 0.5 * 10**-one.decimals + 1e-12, message
    if one.detail is not None:
        expected = one.detail.removesuffix("…")
        assert first.detail.startswith(expected) if expected != one.detail else first.detail == expected, message


def _problem(fields: dict[str, Any]) -> Problem:
    rest = {name: value for name, value in fields.items() if name not in ("prompt", "answer")}
    return Problem("example", fields.get("prompt", ""), fields.get("answer", ""), rest)


def _shown(where: str, text: str) -> Shown:
    completion, _, last = f"\n{text}".rpartition("\n")
    match = _ARROW.fullmatch(last)
    if match is None:
        raise ValueError(f"{where}: the last line is {last!r}; expected an arrow and a reward, such as → 1: 82")
    decimals = len(match["decimals"] or "")
    return Shown(
        where=where,
        completion=completion.removeprefix("\n"),
        tokens=int(match["tokens"]) if match["tokens"] else None,
        value=float(match["value"].replace("−", "-")) if match["value"] else None,
        decimals=decimals or 12,  # a whole number is meant exactly
        error=match["error"],
        detail=match["detail"],
    )


def _blocks(page: Path) -> Iterator[tuple[str, str, str]]:
    """(what stands after the opening fence, page and line, text) of each fenced block. A fence of more backticks may
    hold one of fewer."""
    fence, info, start, lines = "", "", 0, list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").split("\n"), start=1):
        if not fence:
            if match := re.match(r"(`{3,})(.*)", line):
                fence, info, start, lines = match[1], match[2].strip(), number, []
        elif line.strip() == fence:
            yield info, f"{page.name}, line {start}", "\n".join(lines)
            fence = ""
        else:
            lines.append(line)
    if fence:
        raise ValueError(f"{page.name}, line {start}: the block has no end")
