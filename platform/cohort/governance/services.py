"""What is done to records: seal one. Nothing ever changes or deletes one."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from django.db import transaction

from cohort import artifacts
from cohort.governance.card import write_card
from cohort.governance.facts import State, collect
from cohort.governance.models import Record
from cohort.governance.schema import SCHEMA
from cohort.runs.models import Run, RunEvent, RunState

_STATES: dict[str, State] = {
    RunState.SEALING: "succeeded",
    RunState.SUCCEEDED: "succeeded",
    RunState.FAILED: "failed",
    RunState.CANCELLED: "cancelled",
}


class NotEnded(Exception):
    """The run still goes on; there is nothing to seal yet."""


def record_seal(*, run: Run) -> Record:
    """Seal the record of an ended run and store its card; a run that has one keeps it.

    Raises NotEnded. Two callers at once make one record: what the second built is thrown away.
    """
    if existing := Record.objects.filter(run=run).first():
        return existing
    run = Run.objects.select_related(
        "project", "base_model", "dataset", "eval_dataset", "verifier_version__verifier", "created_by"
    ).get(pk=run.pk)
    if run.state not in _STATES:
        raise NotEnded(f"run {run.pk} is {run.get_state_display().lower()}; a record is sealed when it has ended")
    facts = collect(run, state=_STATES[run.state])
    with tempfile.TemporaryDirectory(prefix="cohort-card-") as folder:
        path = Path(folder) / "card.zip"
        card = write_card(facts, path)
        stored = artifacts.put(f"cards/{run.pk}-{card.digest[:16]}.zip", _chunks(path))
    filled, total = card.record.counts()
    with transaction.atomic():
        Run.objects.select_for_update().get(pk=run.pk)
        if existing := Record.objects.filter(run=run).first():
            return existing
        record = Record.objects.create(
            run=run,
            schema_version=SCHEMA,
            document=card.document.decode(),
            digest=card.digest,
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
            data={"digest": card.digest, "card_sha256": stored.sha256},
        )
    return record


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as handle:
        while chunk := handle.read(1 << 20):
            yield chunk
