"""The comparisons of a record made again from its items: what the record says enters only as names, margins and which
items were found in the training data."""

from collections.abc import Iterable, Mapping
from typing import Any

from cohort.evidence.compare import NOT_COMPARABLE, Case, SuiteFacts, by_suite, compare_all

MAX_SUITES = 1_000
"""Each may cost half a second, where scores are not all 0 or 1."""


def recompute(
    recorded: list[dict[str, Any]],
    before: Iterable[Any],
    after: Iterable[Any],
    touched: Mapping[str, frozenset[str]],
) -> list[dict[str, Any]]:
    """The comparisons of `recorded`, in its order. `touched`: suite → ids of the items that the training texts held,
    where the record has a report of that; elsewhere what the comparison itself names. Raises KeyError, TypeError or
    ValueError for lines that are no items, and for suites that are not those of the record."""
    if len(recorded) > MAX_SUITES:
        raise ValueError(f"more than {MAX_SUITES:,} suites")
    old, new = by_suite(before), by_suite(after)
    suites = [str(comparison["suite"]) for comparison in recorded]
    if len(set(suites)) != len(suites) or set(suites) != set(old) | set(new):
        raise ValueError("the suites in the items are not those in the record")
    cases: list[Case] = []
    for comparison, suite in zip(recorded, suites, strict=True):
        clean = comparison["clean"]
        ids = None if clean is None else touched.get(suite, frozenset(clean["touched_ids"]))
        cases.append(
            (SuiteFacts.of(comparison), old.get(suite), new.get(suite), comparison["verdict"] != NOT_COMPARABLE, ids)
        )
    return compare_all(cases)
