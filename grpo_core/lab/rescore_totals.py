"""What two rewards make of the same stored samples, added up: how far they agree, and what the second would
have paid."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_core.stats.agreement import VERDICTS, agreement_figures
from grpo_core.stats.paired import nearly_equal
from grpo_core.text import format_percent


@dataclass
class Totals:
    """Of all samples so far."""

    rubric_digest: str
    confusion: Counter[tuple[bool | None, bool | None]] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    steps: list[int] = field(default_factory=list)
    """The first and the last."""
    paid: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """Sum of both rewards, of samples that have both."""
    both: int = 0
    spread: list[int] = field(default_factory=lambda: [0, 0])
    """Groups in which the first, and the second, reward varies."""
    groups: int = 0
    turned: int = 0
    """Samples that one reward puts above the mean of its group and the other below."""

    def add_group(self, lines: list[dict[str, Any]]) -> None:
        """All samples of one group."""
        for line in lines:
            self.add(line)
        pairs = [
            (line["reward"], line["second_reward"])
            for line in lines
            if line["reward"] is not None and line["second_reward"] is not None
        ]
        self.groups += 1
        if not pairs:
            return
        means = [math.fsum(rewards) / len(pairs) for rewards in zip(*pairs, strict=True)]
        self.both += len(pairs)
        for index, rewards in enumerate(zip(*pairs, strict=True)):
            self.paid[index] += math.fsum(rewards)
            self.spread[index] += not nearly_equal(rewards)
        self.turned += sum(_turned([reward - mean for reward, mean in zip(pair, means, strict=True)]) for pair in pairs)

    def add(self, line: Mapping[str, Any]) -> None:
        self.confusion[line["passed"], line["second_passed"]] += 1
        self.changes[line["change"]] += 1
        if line["second_reward"] is None:
            self.errors[line["error_class"] or "verifier"] += 1
        self.steps = [*self.steps[:1], line["step"]]

    @property
    def figures(self) -> dict[str, Any]:
        """JSON-ready, with the keys of a record's `oversight.rescores`."""
        verdicts = (True, False, None)
        confusion = [[self.confusion[first, second] for second in verdicts] for first in verdicts]
        return {
            "sha256": self.rubric_digest,
            "steps": {"first": self.steps[0], "last": self.steps[-1]},
            "samples": self.confusion.total(),
            "confusion": {
                first: dict(zip(VERDICTS, row, strict=True)) for first, row in zip(VERDICTS, confusion, strict=True)
            },
            "changes": {name: self.changes[name] for name in ("same", "lower", "higher", "unscored")},
            "errors": dict(sorted(self.errors.items())),
            **agreement_figures(confusion),
            "mean_reward": {
                name: total / self.both if self.both else None for name, total in zip(_BOTH, self.paid, strict=True)
            },
            "groups": self.groups,
            "groups_with_spread": dict(zip(_BOTH, self.spread, strict=True)),
            "advantage_turned": self.turned,
        }

    def text(self) -> Iterator[str]:
        figures = self.figures
        first, last = figures["steps"].values()
        yield f"{figures['samples']:,} samples of steps {first:,} to {last:,}, second reward {self.rubric_digest[:12]}"
        yield ""
        yield f"{'':16}" + "".join(f"{'second: ' + name:>18}" for name in figures["confusion"])
        for name, row in figures["confusion"].items():
            yield f"{'first: ' + name:16}" + "".join(f"{count:>18,}" for count in row.values())
        yield ""
        if (agreement := figures["agreement"]) is None:
            yield "no sample was called right or wrong by both"
        else:
            low, high = (format_percent(agreement[name]) for name in ("low", "high"))
            share = format_percent(agreement["share"])
            yield f"agreement {share} [{low}, {high}] of {agreement['n']:,} that both call right or wrong"
            yield f"Cohen's κ {_kappa(figures['kappa'])}"
        yield "reward: " + ", ".join(f"{name} {count:,}" for name, count in figures["changes"].items())
        if self.both:
            means = figures["mean_reward"]
            yield f"mean reward {means['first']:.4f} then, {means['second']:.4f} by the second"
            spread = figures["groups_with_spread"]
            yield (
                f"groups whose reward varies: {spread['first']:,} of {self.groups:,} then, {spread['second']:,} by the "
                f"second; samples that go from above their group's mean to below it, or back: {self.turned:,}"
            )
        if self.errors:
            yield "without a second reward: " + ", ".join(f"{name} {n:,}" for name, n in figures["errors"].items())


_BOTH = ("first", "second")
_ROUNDING = 1e-9
"""Of a mean."""


def _turned(differences: Sequence[float]) -> bool:
    """Whether the advantage has the other sign: of every estimator that compares with the group's mean."""
    first, second = differences
    return abs(first) > _ROUNDING and abs(second) > _ROUNDING and (first > 0) != (second > 0)


def _kappa(kappa: Mapping[str, Any]) -> str:
    if kappa["value"] is None:
        return f"is not defined: {kappa['reason']}"
    interval = "" if kappa["low"] is None else f" [{kappa['low']:.2f}, {kappa['high']:.2f}]"
    return f"{kappa['value']:.2f}{interval}"
