"""Celery tasks of this app; each calls one function and may run twice."""

from typing import Any

from celery import shared_task

from cohort.contamination import services


@shared_task(name=services.TASK)  # type: ignore[untyped-decorator]
def check(overlap_id: int) -> None:
    services.check(overlap_id)


@shared_task(name="cohort.contamination.remind")  # type: ignore[untyped-decorator]
def remind(**_: Any) -> None:
    services.remind()
