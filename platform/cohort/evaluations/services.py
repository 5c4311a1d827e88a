"""Imports what other evaluation tools measured: shown next to the run's own results, and marked, never mixed. Which
tool wrote the files of one import, and all that they state, is found here; what is in them, in `imports`."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from django.core.exceptions import ValidationError
from django.db import transaction

from cohort.accounts.models import User
from cohort.audit import services as audit
from cohort.evaluations.imports import inspect_log, lm_eval
from cohort.evaluations.imports.bounds import MAX_UPLOAD_BYTES, BadImport, ToolResult, document, name
from cohort.runs.models import ImportedResult, Run
from cohort.runs.transitions import run_lock, run_logged

MAX_RESULTS = 2000
"""Numbers of one import."""
_ZIP = b"PK\x03\x04"


@dataclass(frozen=True)
class Upload:
    name: str
    content: bytes

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


def read_uploads(uploads: Sequence[Upload]) -> tuple[Upload, list[ToolResult]]:
    """(the file that states the results, what it states). One log of Inspect, or one results file of
    lm-evaluation-harness with any number of its samples files. Raises BadImport."""
    if sum(len(upload.content) for upload in uploads) > MAX_UPLOAD_BYTES:
        raise BadImport(f"The files are more than {MAX_UPLOAD_BYTES:,} bytes together", code="too_large")
    for upload in uploads:
        name(upload.name, "a file's name")
    samples = [upload for upload in uploads if lm_eval.is_samples(upload.name)]
    heads = [upload for upload in uploads if upload not in samples]
    if len(heads) != 1:
        named = ", ".join(upload.name for upload in heads) or "none"
        raise BadImport(
            "One import takes one log of Inspect, or one results_….json of lm-evaluation-harness with its "
            f"samples_….jsonl; files that state results here: {named}",
            code="one_results_file",
        )
    head = heads[0]
    numbers = _read(head)
    if samples and numbers[0].tool != lm_eval.TOOL:
        raise BadImport(
            f"{samples[0].name} is of lm-evaluation-harness and {head.name} is a log of Inspect", code="mixed_tools"
        )
    for upload in samples:
        numbers = lm_eval.with_samples(numbers, upload.name, upload.content)
    if len(numbers) > MAX_RESULTS:
        raise BadImport(
            f"{head.name} states {len(numbers):,} numbers; at most {MAX_RESULTS:,} are taken at once",
            code="too_many_results",
        )
    return head, numbers


def _read(head: Upload) -> list[ToolResult]:
    if head.content.startswith(_ZIP):
        return inspect_log.read_zip(head.content, head.name)
    data = document(head.content, head.name)
    if inspect_log.is_log(data):
        return inspect_log.read(data, head.name)
    if lm_eval.is_results(data):
        return lm_eval.read(data, head.name)
    raise BadImport(
        f"{head.name} is neither a log of Inspect (it has no eval and status) nor a results file of "
        "lm-evaluation-harness (it has no results with versions)",
        code="unknown_tool",
    )


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
