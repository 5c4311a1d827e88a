"""Results in words, for the log and the terminal. Loads no torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from grpo_core.config.evaluation import HELDOUT
from grpo_core.records.types import ENVELOPE, EvalItem, EvalResult
from grpo_core.stats.clustered import effective_n
from grpo_core.stats.quantiles import Interval, wilson
from grpo_core.stats.unscored import scored_share, share_bounds
from grpo_core.text import format_percent


class Measured(NamedTuple):
    """A result with the items that it sums up."""

    result: EvalResult
    items: Sequence[EvalItem]


def measured_in(path: Path) -> list[Measured]:
    """What the file of one evaluation holds (evals/before.jsonl of a run directory), result by result; none when there
    is no such file."""
    if not path.is_file():
        return []
    measured, items = [], []
    with path.open("rb") as handle:
        for line in handle:
            match ENVELOPE.validate_json(line).record:
                case EvalItem() as item:
                    items.append(item)
                case EvalResult() as result:
                    measured.append(Measured(result, items))
                    items = []
                case _:
                    pass
    return measured


def interval(items: Sequence[EvalItem]) -> Interval:
    """Wilson's 95 % interval of the mean score; where items come in clusters, of the effective number. Of items without
    a score it reaches from the low end were all of these 0 to the high end were all 1."""
    low, high = ([end if item.error is not None else item.score for item in items] for end in (0.0, 1.0))
    return Interval(low=_wilson(items, low).low, high=_wilson(items, high).high)


def _wilson(items: Sequence[EvalItem], scores: Sequence[float]) -> Interval:
    share, worth = sum(scores) / len(scores), float(len(scores))
    if any(item.cluster for item in items):
        worth = effective_n(scores, [item.cluster or f"\0{index}" for index, item in enumerate(items)])
    return wilson(min(share, 1.0) * worth, worth)


def mean_score(items: Sequence[EvalItem]) -> float | None:
    """Of the items that have a score; None where none has."""
    scores = [item.score for item in items if item.error is None]
    return sum(scores) / len(scores) if scores else None


def _percent(result: EvalResult) -> str:
    share = scored_share(result.correct, result.problems, result.errors)
    return "none scored" if share is None else format_percent(share)


def _unscored(result: EvalResult) -> str:
    """How many could not be scored, and the share were all of these wrong or right."""
    if not result.errors:
        return "0 could not be scored"
    bounds = share_bounds(result.correct, result.problems - result.errors, result.errors)
    span = f"{format_percent(bounds.low)} to {format_percent(bounds.high)} if all of these were wrong or right"
    return f"{result.errors} could not be scored ({span})"


def share(measured: Measured) -> str:
    """Score, share and interval; truncated and failed answers separately."""
    result, around = measured.result, interval(measured.items)
    word = "right" if result.suite == HELDOUT else "scored"
    return (
        f"{result.correct:g} of {result.problems - result.errors} {word} = {_percent(result)} "
        f"(95 % interval {format_percent(around.low)} to {format_percent(around.high)}); "
        f"{result.truncated} truncated, {_unscored(result)}"
    )


def log_line(measured: Measured) -> str:
    """One line of a run's log."""
    result = measured.result
    if result.suite != HELDOUT:
        return f"{result.suite} {result.phase}: {share(measured)}"
    wrong = sum(1 - item.score for item in measured.items if item.error is None)
    return (
        f"accuracy {result.phase}: {result.correct:g} of {result.problems - result.errors} ({_percent(result)}); "
        f"{wrong:g} wrong, {_unscored(result)}, {result.truncated} truncated"
    )


def during_line(name: str, items: Sequence[EvalItem], *, best: bool) -> str:
    """The same of an evaluation while training, with its 95 % interval in percent."""
    title = "held-out" if name == HELDOUT else name
    around, score = interval(items), mean_score(items)
    unscored = sum(item.error is not None for item in items)
    shown = "none scored" if score is None else format_percent(score)
    span = f"[{100 * around.low:.0f}, {100 * around.high:.0f}]{f', {unscored} unscored' if unscored else ''}"
    return f"{title} {shown} {span}{', best so far' if best else ''}"


def table(measured: Sequence[Measured]) -> str:
    """All results, one a line, in columns. A suite whose items come in clusters shows how many these are."""
    rows = [("suite", "score", "share", "95 % interval", "clusters", "truncated", "unscored")]
    for entry in measured:
        result, around = entry.result, interval(entry.items)
        clusters = {item.cluster for item in entry.items if item.cluster}
        rows.append(
            (
                result.suite,
                f"{result.correct:g} of {result.problems - result.errors}",
                _percent(result),
                f"{format_percent(around.low)} to {format_percent(around.high)}",
                str(len(clusters)) if clusters else "–",
                str(result.truncated),
                str(result.errors),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def as_dict(measured: Measured) -> dict[str, object]:
    """A result with its interval and its slices, for JSON."""
    slices: dict[str, list[EvalItem]] = {}
    for item in measured.items:
        if item.slice:
            slices.setdefault(item.slice, []).append(item)
    return {
        **measured.result.model_dump(mode="json", exclude={"kind"}),
        **_share(measured.items),
        "slices": {
            name: {
                "problems": len(items),
                "correct": sum(item.score for item in items if item.error is None),
                "errors": sum(item.error is not None for item in items),
                **_share(items),
            }
            for name, items in sorted(slices.items())
        },
    }


def _share(items: Sequence[EvalItem]) -> dict[str, object]:
    around, unscored = interval(items), sum(item.error is not None for item in items)
    total = sum(item.score for item in items if item.error is None)
    bounds = share_bounds(total, len(items) - unscored, unscored) if unscored else None
    return {
        "share": mean_score(items),
        "interval": {"low": around.low, "high": around.high},
        "bounds": bounds and {"low": bounds.low, "high": bounds.high},
    }
