"""Celery tasks about traces; each may run twice. Celery finds them through `cohort.governance.tasks`."""

import logging

from celery import shared_task

from cohort.governance.services import BeingSealed
from cohort.governance.traces.redaction import cards_renew, runs_to_renew
from cohort.governance.traces.retention import traces_expire
from cohort.runs.models import Run

log = logging.getLogger(__name__)


@shared_task(name="cohort.governance.renew_cards")  # type: ignore[untyped-decorator]
def renew_cards(run_id: int) -> None:
    """Issue the cards of a run again after samples of it were redacted; the hourly task does what fails here."""
    try:
        cards_renew(run=Run.objects.get(pk=run_id))
    except BeingSealed as why:
        log.info("run %s: cards are not issued again now: %s", run_id, why)


@shared_task(name="cohort.governance.expire_traces")  # type: ignore[untyped-decorator]
def expire_traces() -> None:
    """Hourly: delete what is kept for too long, and renew every card that still holds a deleted text. A run whose cards
    cannot be made is told in the worker's log and holds up no other."""
    traces_expire()
    failed = []
    for run_id in runs_to_renew():
        try:
            cards_renew(run=Run.objects.get(pk=run_id))
        except BeingSealed as why:
            log.info("run %s: cards are not issued again now: %s", run_id, why)
        except Exception:  # whatever it was, the texts of other runs must go too; it is raised at the end
            log.exception("run %s: cards that hold deleted texts could not be issued again", run_id)
            failed.append(run_id)
    if failed:
        raise RuntimeError(f"cards of {len(failed)} runs still hold deleted texts: {failed}")
