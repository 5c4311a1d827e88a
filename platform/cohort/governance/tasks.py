"""Celery tasks of this app; each calls one function and may run twice."""

import logging

from celery import shared_task

from cohort.governance.card import CardTooLarge
from cohort.governance.services import BeingSealed, NotEnded, record_seal, seal_failed
from cohort.runs.models import Run

log = logging.getLogger(__name__)


@shared_task(name="cohort.governance.seal")  # type: ignore[untyped-decorator]
def seal(run_id: int) -> None:
    """Seal the run's record. What goes wrong is told on the run, and the reconciler asks again."""
    run = Run.objects.get(pk=run_id)
    try:
        record_seal(run=run)
    except (BeingSealed, NotEnded) as why:
        log.info("run %s: not sealed now: %s", run_id, why)
    except Exception as error:
        what = str(error) if isinstance(error, CardTooLarge) else f"{type(error).__name__}: {error}"
        seal_failed(run=run, reason=f"The record could not be sealed: {what}")
        raise
