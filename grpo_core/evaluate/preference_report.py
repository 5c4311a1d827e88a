"""What a reward model is worth, in words: for the log, the terminal and the event. Loads no torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_core.text import format_percent

FACTS = "reward_model_facts"
"""Type of the event whose data are `stats.preferences.preference_facts`, with `step` and `loss`."""


def in_words(facts: Mapping[str, Any]) -> str:
    """One sentence of `stats.preferences.preference_facts`."""
    own = facts["accuracy"]
    return (
        f"held-out pairs: {_share(own)} of {own['pairs']:,} pairs of {own['prompts']:,} prompts ranked right; expected "
        f"calibration error {facts['calibration']['ece']:.3f}; rewards {facts['rewards']['mean']:.3g} ± "
        f"{facts['rewards']['std']:.3g}"
    )


def table(facts: Mapping[str, Any]) -> str:
    """The same and the rest, in columns: accuracy, by which of the two is the longer; the calibration curve."""
    length = facts["length"]
    rows = [("held-out pairs", "pairs", "ranked right", "95 % interval")]
    for name, own in (
        ("all", facts["accuracy"]),
        ("chosen is shorter", length["chosen_shorter"]),
        ("chosen is longer", length["chosen_longer"]),
    ):
        if own is not None:
            interval = f"{format_percent(own['low'])} to {format_percent(own['high'])}"
            rows.append((name, f"{own['pairs']:,}", format_percent(own["share"]), interval))
    lines = _columns(rows)
    rho = length["rho"]
    lines.append(f"rank correlation of reward and length: {'none' if rho is None else f'{rho:.2f}'}")
    curve = [("certainty", "pairs", "expected right", "ranked right")]
    for part in facts["calibration"]["bins"]:
        span = f"{format_percent(part['from'])} to {format_percent(part['to'])}"
        curve.append((span, f"{part['pairs']:,}", format_percent(part["certainty"]), format_percent(part["right"])))
    return "\n".join([*lines, *_columns(curve), f"expected calibration error: {facts['calibration']['ece']:.3f}"])


def _share(own: Mapping[str, Any]) -> str:
    span = f"{format_percent(own['low'])} to {format_percent(own['high'])}"
    return f"{format_percent(own['share'])} (95 % interval {span})"


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
