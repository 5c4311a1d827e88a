"""Celery tasks of this app; each calls one function and may run twice."""

from typing import Any

from celery import shared_task

from cohort.runs import reconcile as reconciler


@shared_task(name="cohort.runs.reconcile")  # type: ignore[untyped-decorator]
def reconcile(**_: Any) -> None:
    reconciler.reconcile()
