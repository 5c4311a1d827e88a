"""Results in words, for the log and the terminal. Loads no torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from grpo_core.config.evaluation import HELDOUT
from grpo_core.records.types import ENVELOPE, EvalItem, EvalResult
from grpo_core.stats.clustered import effective_n
from grpo_core.stats.quantiles import Interval, wilson
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
    """Wilson's 95 % interval of the mean score; where items come in clusters, of the effective number."""
    scores = [item.score for item in items]
    share, worth = sum(scores) / len(scores), float(len(scores))
    if any(item.cluster for item in items):
        worth = effective_n(scores, [item.cluster or f"\0{index}" for index, item in enumerate(items)])
    return wilson(min(share, 1.0) * worth, worth)


def share(measured: Measured) -> str:
    """Score, share and interval; truncated and failed answers separately."""
    result, around = measured.result, interval(measured.items)
    word = "right" if result.suite == HELDOUT else "scored"
    return (
        f"{result.correct:g} of {result.problems} {word} = {format_percent(result.correct / result.problems)} "
        f"(95 % interval {format_percent(around.low)} to {format_percent(around.high)}); "
        f"{result.truncated} truncated, {result.errors} could not be scored"
    )


def log_line(measured: Measured) -> str:
    """One line of a run's log."""
    result = measured.result
    if result.suite != HELDOUT:
        return f"{result.suite} {result.phase}: {share(measured)}"
    wrong = sum(1 - item.score for item in measured.items if item.error is None)
    return (
        f"accuracy {result.phase}: {result.correct:g} of {result.problems} "
        f"({format_percent(result.correct / result.problems)}); {wrong:g} wrong, {result.errors} could not be scored, "
        f"{result.truncated} truncated"
    )


def during_line(name: str, score: float, around: Interval, *, best: bool) -> str:
    """The same of an evaluation while training, with its 95 % interval in percent."""
    title = "held-out" if name == HELDOUT else name
    span = f"[{100 * around.low:.0f}, {100 * around.high:.0f}]"
    return f"{title} {format_percent(score)} {span}{', best so far' if best else ''}"


def table(measured: Sequence[Measured]) -> str:
    """All results, one a line, in columns. A suite whose items come in clusters shows how many these are."""
    rows = [("suite", "score", "share", "95 % interval", "clusters", "truncated", "errors")]
    for entry in measured:
        result, around = entry.result, interval(entry.items)
        clusters = {item.cluster for item in entry.items if item.cluster}
        rows.append(
            (
                result.suite,
                f"{result.correct:g} of {result.problems}",
                f"{format_percent(result.correct / result.problems)}",
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
            name: {"problems": len(items), "correct": sum(item.score for item in items), **_share(items)}
            for name, items in sorted(slices.items())
        },
    }


def _share(items: Sequence[EvalItem]) -> dict[str, object]:
    around = interval(items)
    mean = sum(item.score for item in items) / len(items)
    return {"share": mean, "interval": {"low": around.low, "high": around.high}}
