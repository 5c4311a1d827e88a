"""The result of doing steps again, as text for people and as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from grpo_core.replay.bounds import Bounds, Difference
from grpo_core.replay.compare import StepComparison
from grpo_core.replay.steps import Stretch
from grpo_core.text import printable

Verdict = Literal["equal", "within bounds", "differs"]
EXIT_STATUS: dict[Verdict, int] = {"equal": 0, "within bounds": 0, "differs": 1}
CANNOT = 2
"""Exit status where the steps could not be done again."""
LISTED = 10
"""Mismatches of a step that are printed; the JSON has all."""
NOT_PROVEN = (
    "That other steps give what was recorded of them; more steps, drawn by another number, are further evidence.",
    "That the checkpoint from which the steps begin came of training as stated: --from-start begins before it.",
    "Anything about completions of which no text was kept, but what the step's metrics say of them.",
)


@dataclass
class ReplayReport:
    """Of one call."""

    records: str
    """Where the records lie."""
    name: str
    """Their digest: a card's seal."""
    number: int | None
    """That the steps were drawn by; None where they were named."""
    steps: tuple[int, ...]
    """Named or drawn."""
    stretches: tuple[Stretch, ...]
    environment: list[Difference] = field(default_factory=list)
    """What decides the last bits of numbers and is another here."""
    bounds: Bounds | None = None
    """None where every number must be equal to the bit."""
    compared: list[StepComparison] = field(default_factory=list)
    withheld: tuple[str, ...] = ()
    """What the card does not show."""
    unchecked: list[str] = field(default_factory=list)
    """Inputs whose digests are in no record that is here."""

    @property
    def verdict(self) -> Verdict:
        outcomes = {comparison.outcome for comparison in self.compared}
        if "differs" in outcomes:
            return "differs"
        return "within bounds" if "within" in outcomes else "equal"

    @property
    def exit_status(self) -> int:
        return EXIT_STATUS[self.verdict]

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "exit_status": self.exit_status,
            "records": self.records,
            "name": self.name,
            "number": self.number,
            "steps": list(self.steps),
            "stretches": [{"start": own.start, "last": own.last, "steps_done": own.cost} for own in self.stretches],
            "environment": [asdict(difference) for difference in self.environment],
            "bounds": asdict(self.bounds) if self.bounds is not None else None,
            "compared": [{**asdict(comparison), "outcome": comparison.outcome} for comparison in self.compared],
            "withheld": list(self.withheld),
            "unchecked": self.unchecked,
            "does_not_prove": list(NOT_PROVEN),
        }

    # ------------------------------------------------------------------ for people

    def text(self) -> str:
        return "\n".join(map(printable, self._lines()))

    def _lines(self) -> Iterator[str]:
        wanted = [comparison for comparison in self.compared if comparison.wanted]
        way = [comparison for comparison in self.compared if not comparison.wanted]
        yield self._first_line()
        yield f"records   {self.records}"
        yield f"          {self.name}"
        drawn = "named" if self.number is None else f"drawn by the number {self.number}"
        yield f"steps     {', '.join(map(str, self.steps))}, {drawn}"
        for comparison in wanted:
            yield from _step_lines(comparison)
        if way:
            yield from _way_lines(way)
        yield from _listed("other", self.environment, none="" if self.compared else "nothing was compared")
        if self.bounds is not None:
            own = self.bounds
            yield (
                f"bounds    completions that differ {own.completions:.0%}, log-probabilities {own.logprob:g} nats, "
                f"metrics {own.relative:.0%} or {own.absolute:g}; rewards of the same text none"
            )
        yield from _listed("unchecked", self.unchecked)
        yield from _listed("withheld", self.withheld)
        yield "not proven:"
        yield from (f"  - {line}" for line in NOT_PROVEN)

    def _first_line(self) -> str:
        count = f"{len(self.steps)} step{'' if len(self.steps) == 1 else 's'}"
        match self.verdict:
            case "equal":
                samples = sum(own.samples for own in self.compared)
                compared = f"{samples:,} completions among it" if samples else "of which no completion's text is here"
                return f"equal to the bit: {count} done again give what was recorded, {compared}"
            case "within bounds":
                return f"within bounds: {count} done again are as near to what was recorded as another machine can be"
            case "differs":
                first = next(m for own in self.compared for m in own.mismatches if not m.within)
                return f"differs: {first}"


def _step_lines(own: StepComparison) -> Iterator[str]:
    weights = f"weights ({', '.join(own.weights)})" if own.weights else "weights not compared: no digest was recorded"
    parts = [f"{own.samples:,} completions ({own.committed:,} by their commitments)", f"{own.metrics} metrics", weights]
    if own.deleted:
        parts.append(f"{own.deleted:,} completions deleted since")
    if own.not_kept:
        parts.append(f"{own.not_kept:,} completions never kept")
    words = {"equal": "equal", "within": "within bounds", "differs": "DIFFERS"}
    yield f"step {own.step:<5}{words[own.outcome]}: {'; '.join(parts)}"
    yield from (f"          not compared: {reason}" for reason in own.not_compared if ": " in reason)
    for mismatch in own.mismatches[:LISTED]:
        yield f"          {'near' if mismatch.within else 'DIFFERS'}: {mismatch}"
    if (more := len(own.mismatches) - LISTED) > 0:
        yield f"          and {more:,} more; --json lists all"


def _way_lines(way: Sequence[StepComparison]) -> Iterator[str]:
    outcomes = [comparison.outcome for comparison in way]
    differing = [comparison for comparison in way if comparison.outcome == "differs"]
    near = f", {outcomes.count('within')} within bounds" if "within" in outcomes else ""
    yield f"on the way {len(way)} more steps: {outcomes.count('equal')} equal{near}, {len(differing)} differ"
    for comparison in differing[:1]:
        yield from _step_lines(comparison)


def _listed(title: str, values: Sequence[object], none: str = "") -> Iterator[str]:
    for number, value in enumerate(values or ([none] if none else [])):
        yield f"{title if number == 0 else '':<9} {value}"
