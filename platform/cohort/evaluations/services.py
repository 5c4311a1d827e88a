"""Imports what other evaluation tools measured: shown next to the run's own results, and marked, never mixed."""

from collections.abc import Sequence

from django.core.exceptions import ValidationError
from django.db import transaction

from cohort.accounts.models import User
from cohort.audit import services as audit
from cohort.evaluations.imports import BadImport, Upload, read_uploads
from cohort.runs.models import ImportedResult, Run
from cohort.runs.transitions import run_lock, run_logged


@transaction.atomic
def results_import(*, run: Run, actor: User, phase: str, uploads: Sequence[Upload]) -> list[ImportedResult]:
    """Store every number that the files state, as stated. `phase` says which weights were measured: before, after or
    neither. Raises ValidationError by field; then nothing is stored."""
    if phase not in ImportedResult.Phase.values:
        raise ValidationError({"phase": "Say which weights were measured: before training, after it, or neither."})
    if not uploads:
        raise ValidationError({"upload": "Choose a file."})
    try:
        head, numbers = read_uploads(uploads)
    except BadImport as error:
        raise ValidationError({"upload": f"{error}."}) from None
    run_lock(run=run)  # two uploads of one file at the same time
    earlier = ImportedResult.objects.filter(run=run, file_sha256=head.sha256, phase=phase).select_related("by").first()
    if earlier is not None:
        raise ValidationError(
            {
                "upload": f"{head.name} was imported by {earlier.by.username} on {earlier.at:%d %b %Y} already, as "
                f"{earlier.get_phase_display()}."
            }
        )
    rows = ImportedResult.objects.bulk_create(
        ImportedResult(run=run, phase=phase, file_name=head.name, file_sha256=head.sha256, by=actor, **vars(stated))
        for stated in numbers
    )
    run_logged(
        run=run,
        actor=audit.who(actor),
        kind="results_imported",
        after={"tool": numbers[0].tool, "phase": phase, "results": len(rows)},
        data={"files": [{"name": upload.name, "sha256": upload.sha256} for upload in uploads[:100]]},
    )
    return rows
