"""How a field of the record is filled: one function for each kind of source, and how numbers and text are written."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from cohort.evidence.canonical import CanonicalError, canonical
from cohort.evidence.plain_text import MINUS, percent
from cohort.records.schema_types import NOT_EVALUATED, NOT_MEASURED, NOT_STATED, Answer, Comparison, Evidence


def measured(value: Any, text: str, *, evidence: Evidence = "reported", note: str = "") -> Answer:
    return Answer(value=value, text=text, source="measured", evidence=evidence, note=note)


def estimated(value: Any, text: str, *, note: str = "") -> Answer:
    """Worked out from what was measured and set, by a formula that the note gives."""
    return Answer(value=value, text=text, source="estimated", evidence="reported", note=note)


def declared(value: Any, text: str, *, note: str = "", evidence: Evidence = "declared") -> Answer:
    """From the run's config."""
    return Answer(value=value, text=text, source="config", evidence=evidence, note=note)


def stated(value: Any, text: str, *, by: str, note: str = "") -> Answer:
    return Answer(value=value, text=text, source=f"stated by {by}", evidence="stated", note=note)


def not_stated(note: str = "", *, text: str = NOT_STATED) -> Answer:
    return Answer(value=None, text=text, source="not stated", evidence="none", note=note)


def not_evaluated(note: str = "") -> Answer:
    return not_stated(note, text=NOT_EVALUATED)


def not_measured(note: str = "") -> Answer:
    return not_stated(note, text=NOT_MEASURED)


def not_applicable(why: str) -> Answer:
    return Answer(value=None, text="not applicable", source="not applicable", evidence="none", note=why)


# ---------------------------------------------------------------------- numbers and names


def count(number: float) -> str:
    return f"{number:,.0f}"


def of(part: float, whole: float) -> str:
    """`12 of 480 (2.5 %)`; without the share when there is nothing to share."""
    return f"{count(part)} of {count(whole)}" + (f" ({percent(part / whole)})" if whole else "")


def rate_text(rate: Mapping[str, Any] | None) -> str:
    """A rate of `evidence.judgements`: `3 of 12, 25.0 % [8.9 %, 53.2 %]`; `0 of 0` of nothing."""
    if rate is None:
        return "0 of 0"
    interval = f"[{percent(rate['low'])}, {percent(rate['high'])}]"
    return f"{count(rate['count'])} of {count(rate['n'])}, {percent(rate['share'])} {interval}"


def kappa_text(kappa: Mapping[str, float | None] | None) -> str:
    """Two decimals, with the interval where there is one; a dash where it is not defined."""
    if kappa is None or kappa["value"] is None:
        return "–"
    text = f"{kappa['value']:.2f}"
    if kappa["low"] is not None:
        text += f" [{kappa['low']:.2f}, {kappa['high']:.2f}]"
    return text.replace("-", MINUS)


def steps_text(first: int, last: int) -> str:
    return f"step {count(first)}" if first == last else f"steps {count(first)} to {count(last)}"


def number(value: float) -> str:
    """As people write it: 0.04, 1e-6."""
    mantissa, e, exponent = f"{value:g}".partition("e")
    return mantissa.replace("-", MINUS) + (f"e{int(exponent)}" if e else "")


def judged_by(verdict: str, non_inferiority: str | None, margin: float) -> str:
    """The margin (a share) behind a verdict, in points: `margin 5`. Empty where the verdict names it, and where nothing
    was judged by one: of a neutral score, or without a comparison."""
    return "" if non_inferiority is None or "margin" in verdict else f"margin {number(100 * margin)}"


def decided_by(comparison: Comparison) -> str:
    """How many items, or clusters, would decide it; empty where it is decided, or no number would."""
    if comparison.items_needed is None:
        return ""
    noun = "clusters" if comparison.change and comparison.change.clusters is not None else "items"
    return f"about {count(comparison.items_needed)} {noun} would decide it"


def verdict_in_short(comparison: Comparison) -> str:
    """The verdict and, where it is undecided, how many items would decide it."""
    return "; ".join(filter(None, (comparison.verdict, decided_by(comparison))))


def short(digest: str) -> str:
    return f"sha256 {digest[:12]}…"


def moment(at: datetime | None) -> str:
    return f"{at.day} {at:%b %Y, %H:%M} UTC" if at else "not at all"


def span(seconds: float) -> str:
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 7200 else f"{whole // 3600} h {whole % 3600 // 60} min"


def scaled(value: float, unit: str = "") -> str:
    """With a thousands prefix: 0.8 M, 1.2 T."""
    for size, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:g} {unit}".rstrip()


def plain(value: Any) -> Any:
    """`value`, or its text when canonical JSON cannot carry it (a number over 2⁵³ from a foreign file)."""
    try:
        canonical(value)
    except CanonicalError:
        return str(value)
    return value
