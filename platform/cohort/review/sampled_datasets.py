"""The dataset that a run of kind `sample` wrote: taken from the worker in parts, checked, and made a dataset of the
project's catalog. A call that comes twice changes nothing."""

import tempfile

from django.db import transaction

from cohort.base import artifacts
from cohort.catalog.sampled import sampled_dataset_create
from cohort.nodes import leases
from cohort.review.models import DatasetFile
from cohort.runs.models import Attempt
from cohort.runs.stored_files import BadFile, UnknownFile, append_part, part_keys, require_digest
from cohort.runs.transitions import run_event
from grpo_core.errors import DataError
from grpo_core.protocol.messages import UploadReply


def dataset_part(*, attempt: Attempt, fence: int, sha256: str, offset: int | None, body: bytes) -> UploadReply:
    """Append `body` to the attempt's dataset at byte `offset`; an empty body changes nothing and asks how far it is.
    The call with the last byte returns when the dataset is in the catalog; a file that cannot be one counts as sent
    too, for sending it again would not mend it. Raises StaleFence, UnknownFile, WrongOffset and BadFile."""
    leases.require_current(attempt, fence)
    require_digest(sha256)
    with transaction.atomic():
        files = DatasetFile.objects.select_for_update(of=["self"]).select_related("run__project")
        file = files.filter(attempt=attempt, sha256=sha256).first()
        if file is None:
            raise UnknownFile(f"{sha256} is no dataset that this attempt has named")
        fault = ""
        if file.done_at is None:
            fault = append_part(file, offset, body)
            if file.done_at is not None:
                _admit(file, attempt.node.name)
        reply = UploadReply(received=file.received, done=file.done_at is not None)
    if fault:
        raise BadFile(fault)
    return reply


def _admit(file: DatasetFile, node: str) -> None:
    """Make a dataset of a locked file that came whole, and drop its parts."""
    run = file.run
    with tempfile.TemporaryFile() as whole:
        for key in part_keys(file) or []:
            for chunk in artifacts.read_chunks(key):
                whole.write(chunk)
        try:
            file.dataset = sampled_dataset_create(
                project=run.project,
                run_id=run.pk,
                run_name=run.name,
                node=node,
                content=file.content,
                rows=file.rows,
                size=file.size,
                sha256=file.sha256,
                counts=file.counts,
                handle=whole,
            )
        except DataError as error:
            file.fault = str(error)[:500]
    file.save(update_fields=["fault", "dataset"])
    kind, message = "dataset_stored", f"Its dataset is in the catalog: {file.rows:,} rows"
    if file.fault:
        kind, message = "dataset_refused", f"Its dataset is not in the catalog: {file.fault}"
    data = {"sha256": file.sha256, "rows": file.rows, "dataset": file.dataset_id}
    run_event(run=run, actor=f"node:{node}", kind=kind, message=message, data=data)
    transaction.on_commit(lambda: artifacts.remove_folder(file.folder))
