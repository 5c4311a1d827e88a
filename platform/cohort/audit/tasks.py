"""Celery tasks of this app; each calls one function and may run twice."""

from celery import shared_task

from cohort.audit import push as pushing


@shared_task(name="cohort.audit.push")  # type: ignore[untyped-decorator]
def push() -> None:
    """What fails has been told in the log and stands on the log's page; it is tried again at the next turn."""
    pushing.push(only_new=True)
