"""Every suite of a run before and after, as in the record: items from the database, statistics by the same functions
that check a card."""

from collections.abc import Iterable

from cohort.evaluations.selectors import Suite
from cohort.records.schema_types import Comparison


def comparisons(suites: Iterable[Suite]) -> list[Comparison]:
    """The held-out problems first, then the suites by name."""
    return [Comparison.model_validate(suite.compared) for suite in suites]
