"""Token arrays of samples: taken from the worker, checked, stored, shown, and deleted with the text that they are.

What came is kept only as a copy that the platform wrote (`grpo_core.files.token_copy`): without the rows whose text was
deleted before, and of a file that is not as announced, nothing. A row that is deleted later is written out of the copy,
and the file that held it is removed. Both lock the file's row, so neither can pass the other by.
"""

import io
import logging
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from django.db import transaction
from django.db.models import Exists, OuterRef

from cohort.base import artifacts
from cohort.base.scratch import scratch_folder
from cohort.nodes import leases
from cohort.review.models import Sample, TokenFile
from cohort.runs.models import Attempt, Run
from cohort.runs.stored_files import BadFile, UnknownFile, append_part, part_keys, require_digest
from grpo_core.files.token_copy import MAX_SECONDS, Announced, Reply, Request
from grpo_core.files.token_file import TokenFile as Arrays
from grpo_core.files.token_file import TokenFileError, TokenRow, write_rows
from grpo_core.protocol.messages import UploadReply

COMMAND = ["-m", "grpo_core.files.token_copy"]
Key = tuple[int, int]
"""(group of the step, sample of the group)."""

log = logging.getLogger(__name__)


def token_part(*, attempt: Attempt, fence: int, sha256: str, offset: int | None, body: bytes) -> UploadReply:
    """Append `body` to the attempt's file at byte `offset`; an empty body changes nothing and asks how far it is. The
    call with the last byte returns when the file was checked and stored; a file that is not as announced counts as sent
    too, for sending it again would not mend it. Raises StaleFence, UnknownFile, WrongOffset and BadFile."""
    leases.require_current(attempt, fence)
    require_digest(sha256)
    with transaction.atomic():
        # Two steps cannot have the same file: each of its rows has a salt.
        file = TokenFile.objects.select_for_update().filter(attempt=attempt, sha256=sha256).first()
        if file is None:
            raise UnknownFile(f"{sha256} is no file of token arrays that this attempt has named")
        fault = ""
        if file.done_at is None:
            fault = append_part(file, offset, body)
            if file.done_at is not None:
                _admit(file)
        reply = UploadReply(received=file.received, done=file.done_at is not None)
    if fault:
        raise BadFile(fault)
    return reply


def _admit(file: TokenFile) -> None:
    """Store a copy of a locked file that came whole, and drop what came."""
    with scratch_folder("tokens") as folder:
        source, target = folder / "sent.parquet", folder / "kept.parquet"
        with source.open("wb") as handle:
            for key in part_keys(file) or []:
                for chunk in artifacts.read_chunks(key):
                    handle.write(chunk)
        reply = _copied(Request(source=str(source), target=str(target), rows=_announced(file)))
        file.fault = reply.fault[:500]
        file.held = [list(key) for key in reply.held]
        if reply.held:
            with target.open("rb") as copy:
                _store(file, iter(lambda: copy.read(1 << 20), b""))
    file.save(update_fields=["fault", "held", "artifact"])
    transaction.on_commit(lambda: artifacts.remove_folder(file.folder))
    if reply.fault:
        log.warning("run %s: the token arrays of step %s are not kept: %s", file.run_id, file.step, reply.fault)


def _announced(file: TokenFile) -> list[Announced]:
    """A sample that was deleted, or whose group never came, is left out."""
    rows = Sample.objects.filter(group__attempt=file.attempt_id, group__step=file.step, redacted_at=None)
    known = {
        (group, index): (tokens, sha256)
        for group, index, tokens, sha256 in rows.values_list("group__index", "index", "tokens", "tokens_sha256")
    }
    announced = []
    for group, index in file.samples:
        tokens, sha256 = known.get((group, index), (None, ""))
        announced.append(Announced(group=group, sample=index, tokens=tokens, sha256=sha256))
    return announced


def _copied(request: Request) -> Reply:
    try:
        done = subprocess.run(
            [sys.executable, *COMMAND],
            input=request.model_dump_json(),
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * MAX_SECONDS,
            cwd=Path(request.source).parent,
        )
    except subprocess.TimeoutExpired:
        return Reply(held=[], fault=f"reading it took longer than {2 * MAX_SECONDS} s")
    if done.returncode:
        log.error("token arrays could not be read (status %s): %s", done.returncode, done.stderr[-2000:])
        return Reply(held=[], fault=f"reading it needed too much memory or time, or crashed (status {done.returncode})")
    return Reply.model_validate_json(done.stdout)


def _store(file: TokenFile, chunks: Iterable[bytes]) -> None:
    """Under a new key; the caller saves the row and has the file before it removed."""
    file.artifact = f"{_folder(file.run_id)}/{file.pk}-{uuid4().hex}.parquet"
    artifacts.put(file.artifact, chunks)


def _folder(run_id: int) -> str:
    return f"tokens/run-{run_id}"


# ---------------------------------------------------------------------- reading


class TokensUnreadable(Exception):
    """Why the arrays of a sample cannot be shown, as a sentence."""


def token_row(sample: Sample) -> TokenRow:
    """The arrays of a sample. Raises TokensUnreadable where there are none, or none yet."""
    group = sample.group
    if sample.redacted_at is not None:
        raise TokensUnreadable("The text of this sample was deleted, and its token arrays with it.")
    if not sample.tokens_sha256:
        raise TokensUnreadable("No token arrays were kept of this sample.")
    file = TokenFile.objects.filter(attempt=group.attempt_id, step=group.step).first()
    if file is None or file.done_at is None:
        raise TokensUnreadable(
            "The token arrays of this step have not reached the platform: the worker sends them behind the records, "
            "and those that it had not sent when its attempt ended stay in the run's folder on the node."
        )
    if file.fault:
        raise TokensUnreadable(f"The token arrays of this step are not kept: the file {file.fault}.")
    if [group.index, sample.index] not in file.held:
        raise TokensUnreadable("The step's file holds no row of this sample.")
    assert sample.tokens is not None, "only imported samples lack it, and they have no arrays"
    try:
        with artifacts.open_read(file.artifact) as handle:
            row = Arrays(handle).row(file.held.index([group.index, sample.index]), most_tokens=sample.tokens)
    except FileNotFoundError:
        raise TokensUnreadable("The file of this step's token arrays is no longer in the platform's store.") from None
    except TokenFileError as error:
        raise TokensUnreadable(f"The file of this step's token arrays {error}.") from None
    if row.digest != sample.tokens_sha256:
        raise TokensUnreadable("The token arrays stored for this sample are not those that the run committed to.")
    return row


# ---------------------------------------------------------------------- deleting


def token_rows_delete(samples: Sequence[Sample]) -> None:
    """Write the rows of these samples out of the stored files. In the transaction that deletes their texts; each has
    its `group`. Of a file that is on its way nothing stays: it is sent anew, and stored without them."""
    deleted: dict[tuple[int, int], set[Key]] = {}
    for sample in samples:
        if sample.tokens_sha256:
            key = (sample.group.index, sample.index)
            deleted.setdefault((sample.group.attempt_id, sample.group.step), set()).add(key)
    for (attempt, step), keys in sorted(deleted.items()):
        file = TokenFile.objects.select_for_update().filter(attempt=attempt, step=step).first()
        if file is None:
            continue
        if file.done_at is None:
            artifacts.remove_folder(file.folder)
            file.received = 0
            file.save(update_fields=["received"])
        elif any(tuple(key) in keys for key in file.held):
            _rewrite(file, keys)


def _rewrite(file: TokenFile, deleted: set[Key]) -> None:
    """A copy that cannot be read is dropped whole, and the row says so: what was to be deleted must not stay in it."""
    kept: list[TokenRow] = []
    sizes = dict(_lengths(file))
    try:
        with artifacts.open_read(file.artifact) as handle:
            arrays = Arrays(handle)
            kept = [
                arrays.row(number, most_tokens=sizes[group, index])
                for number, (group, index) in enumerate(file.held)
                if (group, index) not in deleted
            ]
    except (FileNotFoundError, TokenFileError) as error:
        log.error("run %s: the token arrays of step %s are dropped: %s", file.run_id, file.step, error)
        file.fault = "could not be read when a row of it was deleted, and was dropped whole"
    file.held, file.artifact = [[row.group, row.sample] for row in kept], ""
    if kept:
        sink = io.BytesIO()
        write_rows(sink, kept)
        _store(file, [sink.getvalue()])
    file.save(update_fields=["held", "artifact", "fault"])
    transaction.on_commit(lambda: _sweep(file.pk))


def _lengths(file: TokenFile) -> Iterable[tuple[Key, int]]:
    rows = Sample.objects.filter(group__attempt=file.attempt_id, group__step=file.step)
    for group, index, tokens in rows.values_list("group__index", "index", "tokens"):
        assert tokens is not None, "only imported samples lack it, and they have no arrays"
        yield (group, index), tokens


@transaction.atomic
def _sweep(file_id: int) -> None:
    """Remove every copy of the file but its newest."""
    file = TokenFile.objects.select_for_update().get(pk=file_id)
    for name in artifacts.sizes(_folder(file.run_id)):
        key = f"{_folder(file.run_id)}/{name}"
        if name.startswith(f"{file.pk}-") and key != file.artifact:
            with suppress(FileNotFoundError):  # another sweep was quicker
                artifacts.remove(key)


def token_files_sweep() -> int:
    """Remove the copies that a process killed between its commit and the removal left behind. Returns how many files
    had one. May run twice."""
    swept = 0
    redacted = Sample.objects.filter(group__run=OuterRef("pk"), redacted_at__isnull=False)
    files = TokenFile.objects.filter(run=OuterRef("pk"))
    for run in Run.objects.filter(Exists(files), Exists(redacted)).only("pk"):
        stored = set(TokenFile.objects.filter(run=run).values_list("artifact", flat=True))
        stale = {
            int(name.partition("-")[0])
            for name in artifacts.sizes(_folder(run.pk))
            if f"{_folder(run.pk)}/{name}" not in stored
        }
        for pk in sorted(stale):
            _sweep(pk)
        swept += len(stale)
    return swept
