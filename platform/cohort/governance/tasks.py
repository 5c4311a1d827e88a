"""Celery tasks of this app; each calls one function and may run twice."""

import logging

from celery import shared_task

from cohort.governance.cards.pack import CardTooLarge
from cohort.governance.services import BeingSealed, NotEnded, NothingNew, record_seal, seal_failed, version_pending
from cohort.governance.traces.tasks import expire_traces, renew_cards
from cohort.runs.models import Run

__all__ = ["expire_traces", "renew_cards", "seal"]

log = logging.getLogger(__name__)


@shared_task(name="cohort.governance.seal")  # type: ignore[untyped-decorator]
def seal(run_id: int) -> None:
    """Seal the run's record, or the further version that was asked for. What goes wrong is told on the run, and the
    reconciler asks again."""
    run = Run.objects.get(pk=run_id)
    try:
        asked = version_pending(run)
        if asked is None:
            record_seal(run=run)
        else:
            record_seal(run=run, reason=asked.reason, actor=asked.by)
    except (BeingSealed, NotEnded, NothingNew) as why:
        log.info("run %s: not sealed now: %s", run_id, why)
    except Exception as error:
        what = str(error) if isinstance(error, CardTooLarge) else f"{type(error).__name__}: {error}"
        seal_failed(run=run, reason=f"The record could not be sealed: {what}")
        raise
