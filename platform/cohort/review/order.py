"""An order of samples, and where in it a page begins or ends.

What a sample is ordered by is compared as it is stored: an expression computed for each of a million rows takes longer
than reading them.
"""

from dataclasses import dataclass
from typing import Any

from django.db.models import F, Q, QuerySet
from django.db.models.expressions import OrderBy

Position = tuple[float | None, int]
"""(what it is ordered by, id) of a sample."""


@dataclass(frozen=True)
class SampleOrder:
    """By one column; samples without a value come last either way, and of equals the earlier one first."""

    column: str
    """Of the rows it is given, or an annotation of them."""
    falls: bool

    def of(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """The rows in this order; each has `sort_value`, which with its id is its position."""
        ordered: QuerySet[Any] = rows.annotate(sort_value=F(self.column))
        return ordered.order_by(self._by(self.falls), "pk")

    def after(self, rows: QuerySet[Any], position: Position) -> QuerySet[Any]:
        value, pk = position
        if value is None:
            return rows.filter(Q((f"{self.column}__isnull", True), pk__gt=pk))
        later = Q((f"{self.column}__{'lt' if self.falls else 'gt'}", value)) | Q((self.column, value), pk__gt=pk)
        if self._always:  # a bound of the index, which an alternative is not
            return rows.filter(Q((f"{self.column}__{'lte' if self.falls else 'gte'}", value))).filter(later)
        return rows.filter(later | Q((f"{self.column}__isnull", True)))

    def before(self, rows: QuerySet[Any], position: Position) -> QuerySet[Any]:
        """Those before the position, from it backwards."""
        value, pk = position
        if value is None:
            earlier = Q((f"{self.column}__isnull", False)) | Q(pk__lt=pk)
        else:
            earlier = Q((f"{self.column}__{'gt' if self.falls else 'lt'}", value)) | Q((self.column, value), pk__lt=pk)
            if self._always:
                rows = rows.filter(Q((f"{self.column}__{'gte' if self.falls else 'lte'}", value)))
        return rows.filter(earlier).order_by(self._by(not self.falls, first=True), "-pk")

    @property
    def _always(self) -> bool:
        """Whether every sample has a value. Only then can the index, which begins with it, be read in this order."""
        return self.column == "step"

    def _by(self, falls: bool, *, first: bool = False) -> OrderBy:
        """`first`: what has no value comes first."""
        ends: dict[str, Any] = {} if self._always else {"nulls_first": True} if first else {"nulls_last": True}
        return F(self.column).desc(**ends) if falls else F(self.column).asc(**ends)
