"""Template filters of the lab's pages alone."""

from typing import Any

from django import template

from cohort.base.formatting import NBSP, NOTHING, duration, num

register = template.Library()


@register.filter
def call_time(seconds: Any) -> str:
    """How long one call took, from microseconds on: 3 µs, 2.1 ms, 1.5 s, 3 min 10 s."""
    if seconds is None or seconds == "":
        return NOTHING
    span = float(seconds)
    if span >= 10:
        return duration(span)
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if span >= size:
            return f"{num(span / size, 2)}{NBSP}{unit}"
    return f"{num(round(span * 1e6))}{NBSP}µs"
