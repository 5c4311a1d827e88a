"""Celery tasks of this app; each calls one function and may run twice."""

from celery import shared_task

from cohort.governance.services import record_seal
from cohort.runs.models import Run, RunState
from cohort.runs.services import run_sealed


@shared_task(name="cohort.governance.seal")  # type: ignore[untyped-decorator]
def seal(run_id: int) -> None:
    """Seal the run's record; a run that only waited for it has then succeeded."""
    run = Run.objects.get(pk=run_id)
    had = hasattr(run, "record")
    record = record_seal(run=run)
    run.refresh_from_db(fields=["state"])
    if run.state == RunState.SEALING or (not had and run.state != RunState.SUCCEEDED):
        run_sealed(run=run, record=record)
