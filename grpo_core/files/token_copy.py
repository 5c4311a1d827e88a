"""Copies a file of token arrays that came from elsewhere, row by row, after checking each: `python -m` this, with a
`Request` on standard input and a `Reply` on standard output.

A process of its own, with bounds on memory and time, is the only place where such a file is parsed: whoever reads the
copy reads what `write_rows` wrote. Loads no torch.
"""

import os
import resource
import sys
from pathlib import Path

from pydantic import BaseModel

from grpo_core.files.token_file import TokenFile, TokenFileError, TokenRow, write_rows

MAX_MEMORY_BYTES, MAX_SECONDS = 4 * 1024**3, 60


class Announced(BaseModel):
    """What is known of a row."""

    group: int
    sample: int
    tokens: int | None
    """Of the completion; None where the row is to be left out unread."""
    sha256: str
    """Its digest, as the sample's leaf holds it."""


class Request(BaseModel):
    source: str
    target: str
    rows: list[Announced]
    """In the order of the file."""


class Reply(BaseModel):
    held: list[tuple[int, int]]
    """(group, sample) of each row of the copy."""
    fault: str
    """Why there is no copy; empty where there is one."""


def copy_rows(request: Request) -> Reply:
    """Copy the rows that are as announced; one that is not is a fault of the whole file."""
    try:
        with Path(request.source).open("rb") as source:
            rows = _checked(TokenFile(source), request.rows)
    except TokenFileError as error:
        return Reply(held=[], fault=str(error))
    if rows:
        with Path(request.target).open("wb") as target:
            write_rows(target, rows)
    return Reply(held=[(row.group, row.sample) for row in rows], fault="")


def _checked(file: TokenFile, announced: list[Announced]) -> list[TokenRow]:
    """Raises TokenFileError."""
    if file.rows != len(announced):
        raise TokenFileError(f"has {file.rows} rows, and {len(announced)} were announced")
    rows = []
    for number, expected in enumerate(announced):
        if expected.tokens is None:
            continue
        row = file.row(number, most_tokens=expected.tokens)
        if (row.group, row.sample) != (expected.group, expected.sample):
            raise TokenFileError(f"row {number} is of group {row.group}, sample {row.sample}, not the announced one")
        if len(row.columns["token_id"]) != expected.tokens:
            raise TokenFileError(f"row {number} has {len(row.columns['token_id'])} tokens, not {expected.tokens}")
        if row.digest != expected.sha256:
            raise TokenFileError(f"row {number} is not what its sample's leaf was made of")
        rows.append(row)
    return rows


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
    print(copy_rows(Request.model_validate_json(sys.stdin.read())).model_dump_json(), flush=True)
    os._exit(0)  # Arrow's threads may outlive the interpreter's own end, which then aborts
