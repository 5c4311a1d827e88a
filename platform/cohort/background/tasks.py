"""Every Celery task of the platform's own queues. Each calls one function and may run twice."""

import logging
from typing import Any

from celery import shared_task
from django.contrib.sessions.backends.db import SessionStore

from cohort.alerts.delivery import channel_deliver
from cohort.alerts.opening import DELIVER_TASK
from cohort.audit import push
from cohort.background import reconcile
from cohort.contamination import services as contamination
from cohort.pipelines.services import run_advance
from cohort.records.cards.issue import CardRefused
from cohort.records.cards.pack import CardTooLarge
from cohort.records.models import Record
from cohort.records.pipeline_requests import pipeline_card_make
from cohort.records.services import BeingSealed, NotEnded, NothingNew, record_seal, seal_failed, version_pending
from cohort.records.status.services import status_issue
from cohort.records.traces.redaction import cards_renew, runs_to_renew, traces_expire
from cohort.review import rescores
from cohort.review.token_files import token_files_sweep
from cohort.review.word_index import words_index
from cohort.runs.dispatch import PIPELINE_CARD_TASK, STAGES_TASK, STATUS_TASK
from cohort.runs.models import Run
from grpo_core.errors import DiskFullError

log = logging.getLogger(__name__)


@shared_task(name="cohort.background.reconcile")  # type: ignore[untyped-decorator]
def reconcile_runs(**_: Any) -> None:
    reconcile.reconcile()


@shared_task(name="cohort.accounts.clear_sessions")  # type: ignore[untyped-decorator]
def clear_sessions() -> None:
    """Daily: delete the rows of sessions that are over."""
    SessionStore.clear_expired()


@shared_task(name="cohort.review.index_words")  # type: ignore[untyped-decorator]
def index_words() -> None:
    """Every few seconds: let the search see the samples that were stored since."""
    words_index()


@shared_task(name="cohort.audit.push")  # type: ignore[untyped-decorator]
def push_audit_log() -> None:
    """A failure is logged, shown on the log's page and tried again at the next turn."""
    push.push(only_new=True)


@shared_task(name=DELIVER_TASK)  # type: ignore[untyped-decorator]
def deliver_alerts(channel_id: int) -> None:
    """Send what is due by the channel; what fails is tried again later."""
    channel_deliver(channel_id)


@shared_task(name=contamination.TASK)  # type: ignore[untyped-decorator]
def check_overlap(overlap_id: int) -> None:
    contamination.check(overlap_id)


@shared_task(name="cohort.contamination.republish_pending")  # type: ignore[untyped-decorator]
def republish_pending(**_: Any) -> None:
    contamination.republish_pending()


@shared_task(name=rescores.FIGURES_TASK)  # type: ignore[untyped-decorator]
def rescore_figures(rescore_id: int) -> None:
    rescores.figures_store(rescore_id)


@shared_task(name=STAGES_TASK)  # type: ignore[untyped-decorator]
def launch_stages(run_id: int) -> None:
    """Of pipelines that waited for this run."""
    run_advance(run_id)


@shared_task(name="cohort.records.seal")  # type: ignore[untyped-decorator]
def seal(run_id: int) -> None:
    """Seal the run's record, or the further version that was requested. A failure is noted on the run, and
    the reconciler requests it again: a few times only where cards were refused, which the same rows will be again."""
    run = Run.objects.get(pk=run_id)
    try:
        requested = version_pending(run)
        if requested is None:
            record_seal(run=run)
        else:
            record_seal(run=run, reason=requested.reason, actor=requested.by)
    except (BeingSealed, NotEnded, NothingNew) as why:
        log.info("run %s: not sealed now: %s", run_id, why)
    except (CardRefused, CardTooLarge) as why:
        if seal_failed(run=run, reason=f"The record could not be sealed: {why}", code=why.code):
            log.error("run %s: not sealed: %s", run_id, why)
    except Exception as error:
        what = str(error) if isinstance(error, DiskFullError) else f"{type(error).__name__}: {error}"
        seal_failed(run=run, reason=f"The record could not be sealed: {what}")
        raise


@shared_task(name=PIPELINE_CARD_TASK)  # type: ignore[untyped-decorator]
def make_pipeline_card(request_id: int) -> None:
    """A failure is noted on the request and shown on the pipeline's page, where a person requests another."""
    pipeline_card_make(request_id)


@shared_task(name="cohort.records.renew_cards")  # type: ignore[untyped-decorator]
def renew_cards(run_id: int) -> None:
    """Issue the cards of a run again after samples of it were redacted; the hourly task does what fails here."""
    _renew(run_id)


def _renew(run_id: int) -> None:
    try:
        cards_renew(run=Run.objects.get(pk=run_id))
    except BeingSealed as why:
        log.info("run %s: cards are not issued again now: %s", run_id, why)


@shared_task(name=STATUS_TASK)  # type: ignore[untyped-decorator]
def issue_status(record_id: int) -> None:
    """Sign and store the record's status, where another one is due."""
    status_issue(record=Record.objects.get(pk=record_id))


@shared_task(name="cohort.records.expire_traces")  # type: ignore[untyped-decorator]
def expire_traces() -> None:
    """Hourly: delete what is kept for too long, and renew every card that still holds a deleted text. A run whose cards
    cannot be made is logged and does not stop the others."""
    traces_expire()
    token_files_sweep()
    failed = []
    for run_id in runs_to_renew():
        try:
            _renew(run_id)
        except Exception:  # whatever it was, the texts of other runs must go too; it is raised at the end
            log.exception("run %s: cards that hold deleted texts could not be issued again", run_id)
            failed.append(run_id)
    if failed:
        raise RuntimeError(f"cards of {len(failed)} runs still hold deleted texts: {failed}")
