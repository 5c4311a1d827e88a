"""A card's headline numbers, computed again from the card's own files and compared with what its record says.

Knows no Django. Raises Differs with the first number that does not follow.
"""

import math
from collections.abc import Iterable
from typing import Any

import yaml

from cohort.governance.compare import NOT_COMPARABLE, by_suite, compare
from cohort.governance.digests import canonical, sha256
from cohort.governance.schema import Comparison, Sealed
from cohort.governance.words import dig, percent, points
from grpo_core.yaml_text import parse_yaml

_TOLERANCE = 1e-9
"""For sums that another machine's mathematics library may round otherwise."""


class Differs(Exception):
    """A number of the record does not follow from the card's files."""


def config(content: bytes, sealed: Sealed) -> str:
    """config.yaml has the digest that the record names, and the margin that its comparisons use."""
    said = dig(_value(sealed.record.method.config), "sha256")
    try:
        parsed = parse_yaml(content.decode("utf-8"))
        found = sha256(canonical(parsed))
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise Differs(f"config.yaml: cannot be read: {error}") from None
    if found != said:
        raise Differs(f"config.yaml: its canonical JSON has sha256 {found}, and the record says {said}")
    for comparison in sealed.record.behaviour.performance.value or ():
        if comparison.margin != dig(parsed, "eval", "margin"):
            raise Differs(f"config.yaml: {comparison.suite} was judged by another margin than eval.margin")
    return "config.yaml is the config that the record names"


def steps(lines: Iterable[Any], sealed: Sealed) -> str:
    """metrics.jsonl has one line for each step that the record counts, and its ends have the mean rewards it names."""
    first: Any = None
    last: Any = None
    done = 0
    for done, line in enumerate(lines, start=1):
        step = dig(line, "step")
        if type(step) is not int or step != done:
            raise Differs(f"metrics.jsonl, line {done}: is not the line of step {done}")
        first, last = first if done > 1 else line, line
    said = dig(_value(sealed.record.budget.steps), "done")
    if done != said:
        raise Differs(f"metrics.jsonl ends at step {done}, and the record says {said}")
    course = _value(sealed.record.reward.course)
    for name, line in (("first", first), ("last", last)):
        found = {f"{name}_step": dig(line, "step"), name: dig(line, "metrics", "reward")}
        if course is not None and found != {key: dig(course, key) for key in found}:
            raise Differs(f"metrics.jsonl: the {name} step and its mean reward are not those that the record says")
    return f"steps 1 to {done} in metrics.jsonl, as the record says" if done else "no step was trained"


def statistics(before: Iterable[Any], after: Iterable[Any], sealed: Sealed) -> str:
    """Accuracy, intervals and paired difference of every suite follow from evals/*.jsonl."""
    try:
        items = {"before": by_suite(before), "after": by_suite(after)}
    except (KeyError, TypeError, ValueError) as error:
        raise Differs(f"evals: a line is not an evaluation item: {error!r}") from None
    said = {comparison.suite: comparison for comparison in sealed.record.behaviour.performance.value or ()}
    if set(said) != set(items["before"]) | set(items["after"]):
        raise Differs("evals: the suites in the items are not those in the record")
    for suite, comparison in said.items():
        try:
            found = compare(
                suite,
                items["before"].get(suite),
                items["after"].get(suite),
                margin=comparison.margin,
                protocol=comparison.protocol,
                same_protocol=comparison.verdict != NOT_COMPARABLE,
            )
        except ValueError as error:
            raise Differs(f"evals: {suite}: {error}") from None
        if fault := _difference(found.model_dump(), comparison.model_dump(), suite):
            raise Differs(f"evals: {fault}")
    return "; ".join(_line(comparison) for comparison in said.values()) or "nothing was evaluated"


def _line(found: Comparison) -> str:
    sides = [
        f"{percent(side.share)} {when}" for side, when in ((found.before, "before"), (found.after, "after")) if side
    ]
    text = f"{found.suite}: {', '.join(sides)} of {found.problems} problems"
    if found.change is not None:
        low, high = points(found.change.interval.low), points(found.change.interval.high)
        text += f", {points(found.change.difference)} points [{low}, {high}]"
    return f"{text}, recomputed from the items"


def _difference(found: Any, said: Any, where: str) -> str | None:
    """The first place where the two differ, in words."""
    if isinstance(found, dict) and isinstance(said, dict) and set(found) == set(said):
        return next((f for key in found if (f := _difference(found[key], said[key], f"{where}.{key}"))), None)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (found, said))
    same = math.isclose(found, said, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE) if numbers else found == said
    return None if same else f"{where} is {found} by the items, and the record says {said}"


def _value(entry: Any) -> Any:
    return entry.value
