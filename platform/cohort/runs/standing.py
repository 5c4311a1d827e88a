"""Which rows of a run stand and which a later attempt superseded: the one rule that every reader of steps, groups,
evaluations and checkpoints shares.

An attempt that resumes from step k takes the place of what earlier attempts recorded beyond k. Nothing is deleted and
no row is touched: the earlier attempts' `valid_through` becomes k, and rows beyond it are superseded.
"""

from typing import TypeVar

from django.db.models import F, Model, Q, QuerySet

Row = TypeVar("Row", bound=Model)

_ALL = Q(attempt__valid_through=None)


def standing(rows: QuerySet[Row]) -> QuerySet[Row]:
    """Of rows with `attempt` and `step` (steps, groups, checkpoints): those that no later attempt took the place of."""
    return rows.filter(_ALL | Q(step__lte=F("attempt__valid_through")))


def superseded(rows: QuerySet[Row]) -> QuerySet[Row]:
    """The others."""
    return rows.filter(step__gt=F("attempt__valid_through"))


def standing_evaluations(rows: QuerySet[Row]) -> QuerySet[Row]:
    """Of rows with `attempt` and `phase`: what was measured before training stands unless a later attempt began at the
    beginning, what was measured after it unless a later attempt continued at all."""
    return rows.filter(_ALL | Q(phase="before", attempt__valid_through__gte=0))
