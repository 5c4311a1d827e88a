"""What is done to records: seal one. Nothing ever changes or deletes one."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import connection, transaction

from cohort import artifacts
from cohort.governance.card import Card, write_card
from cohort.governance.facts import Facts, State, collect
from cohort.governance.models import Record
from cohort.governance.schema import SCHEMA
from cohort.runs.models import Run, RunEvent, RunState
from cohort.runs.services import run_sealed
from cohort.runs.transitions import run_event, run_lock

_STATES: dict[str, State] = {
    RunState.SEALING: "succeeded",
    RunState.SUCCEEDED: "succeeded",
    RunState.FAILED: "failed",
    RunState.CANCELLED: "cancelled",
}


class NotEnded(Exception):
    """The run still goes on; there is nothing to seal yet."""


class BeingSealed(Exception):
    """Another process seals this record at this moment."""


def record_seal(*, run: Run) -> Record:
    """Seal the record of an ended run and store its card; an end that has one keeps it. A run that only waited for it
    has then succeeded. Records of earlier ends stay as they are.

    The run is not locked while it is read, which may take minutes. Should it go on meanwhile, what was read is of no
    end any more, and nothing is stored.

    Raises NotEnded, BeingSealed and CardTooLarge.
    """
    with _alone(run.pk):
        run = Run.objects.select_related(
            "project",
            "base_model",
            "dataset",
            "eval_dataset",
            "verifier_version__verifier",
            "created_by",
            "cloned_from",
        ).get(pk=run.pk)
        if run.state not in _STATES:
            raise NotEnded(f"run {run.pk} is {run.get_state_display().lower()}; a record is sealed when it has ended")
        end = run.ends
        if existing := Record.objects.filter(run=run, end=end).first():
            run_sealed(run=run)  # who stored it may have ended before the run was told
            return existing
        facts = collect(run, state=_STATES[run.state])
        with tempfile.TemporaryDirectory(prefix="cohort-card-") as folder:
            path = Path(folder) / "card.zip"
            card = write_card(facts, path)
            stored = artifacts.put(f"cards/{run.pk}-{card.sealed.seal[:16]}.zip", _chunks(path))
        try:
            return _store(facts, card, stored)
        except Exception:  # whatever it was, a card must not stay without its record; it is raised again below
            kept = Record.objects.filter(run=run, end=end).first()
            if kept is None or kept.card_artifact != stored.key:
                artifacts.remove(stored.key)
            if kept is None:
                raise
            return kept  # the lock ends with its connection, and then another may come first


@transaction.atomic
def _store(facts: Facts, card: Card, stored: artifacts.Stored) -> Record:
    run = facts.run
    read = (facts.state, run.ends, run.fence)
    run_lock(run=run)
    if (_STATES.get(run.state), run.ends, run.fence) != read:
        raise NotEnded(f"run {run.pk} went on while its record was being made; another is sealed at its next end")
    filled, total = card.sealed.record.counts()
    record = Record.objects.create(
        run=run,
        end=run.ends,
        fence=run.fence,
        schema_version=SCHEMA,
        document=card.document.decode(),
        digest=card.sealed.record_digest,
        card_artifact=stored.key,
        card_sha256=stored.sha256,
        card_size=stored.size,
        fields_stated=filled,
        fields_total=total,
        sealed_at=facts.sealed_at,
    )
    RunEvent.objects.create(
        run=run,
        at=facts.sealed_at,
        actor="platform",
        kind="sealed",
        message=f"Record sealed, {filled} of {total} fields stated",
        data={"seal": card.sealed.seal, "card_sha256": stored.sha256},
    )
    run_sealed(run=run)
    return record


@transaction.atomic
def seal_failed(*, run: Run, reason: str) -> None:
    """Tell on the run why it has no record yet; it is tried again. The same reason is told once."""
    run_lock(run=run)
    if run.state == RunState.SEALING:
        run.reason = reason
        run.save(update_fields=["reason"])
    if not RunEvent.objects.filter(run=run, kind="seal_failed", message=reason).exists():
        run_event(run=run, actor="platform", kind="seal_failed", message=reason)


@contextmanager
def _alone(run_id: int) -> Iterator[None]:
    """Only one process at a time seals a run. Raises BeingSealed."""
    lock = [f"cohort seal {run_id}"]
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", lock)
        if cursor.fetchone() != (True,):
            raise BeingSealed(f"the record of run {run_id} is being sealed")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", lock)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as handle:
        while chunk := handle.read(1 << 20):
            yield chunk
