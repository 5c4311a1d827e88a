"""The whole log as a file: what anyone needs to rebuild its tree without this database."""

import os
from pathlib import Path

from django.db import connection

from cohort.audit import services
from cohort.audit.tree import READ_ROWS
from grpo_core.errors import DataError


def export(path: Path) -> int:
    """Write every entry up to a checkpoint made now, in the tree's order, its exact bytes and a line end each, and the
    checkpoint next to it as `<path>.checkpoint`. Returns how many entries.

    Raises DataError when one of the files exists or cannot be written.
    """
    head = services.checkpoint()
    checkpoint_path = path.with_name(f"{path.name}.checkpoint")
    statement = (
        "SELECT entry.body FROM audit_auditleaf AS leaf JOIN audit_auditentry AS entry ON entry.id = leaf.entry_id "
        "WHERE leaf.idx < %s ORDER BY leaf.idx"
    )
    count = 0
    try:
        with path.open("xb") as lines, connection.chunked_cursor() as cursor:
            cursor.execute(statement, [head.size])
            while rows := cursor.fetchmany(READ_ROWS):
                count += len(rows)
                lines.writelines(bytes(body) + b"\n" for (body,) in rows)
            lines.flush()
            os.fsync(lines.fileno())
        with checkpoint_path.open("x", encoding="utf-8") as note:
            note.write(head.note)
    except FileExistsError as error:
        raise DataError(f"{error.filename} is there already; give another name") from None
    except OSError as error:
        raise DataError(f"cannot write {error.filename or path}: {error.strerror}") from None
    if count != head.size:
        raise services.LogFault(f"{count:,} entries were found of the {head.size:,} of the checkpoint: see `check`")
    return count
