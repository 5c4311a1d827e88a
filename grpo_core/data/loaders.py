"""Problems from files. A fault names file, line or row, what was found and what was expected.

Reading is streamed: the platform checks an upload with `scan_problems` without holding it in memory. Nothing is
repaired or skipped silently; only blank lines are passed over.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

from grpo_core.data.containers import Container, container_of, rows_of
from grpo_core.data.layouts import LAYOUTS
from grpo_core.data.problem import Problem
from grpo_core.data.reading import Reading, choose_reading
from grpo_core.errors import DataError
from grpo_core.specs.fields import DataColumns

AS_NAMED = DataColumns()
"""The columns as the layout names them."""


def load_problems(
    path: Path, format: str, *, columns: DataColumns = AS_NAMED, limit: int | None = None
) -> list[Problem]:
    """The problems of the file, in its order; with `limit` only the first so many, and no row after them is read.

    Raises DataError naming file and line or row.
    """
    try:
        with path.open("rb") as handle:
            return list(islice(scan_problems(handle, format, columns=columns, source=str(path)), limit))
    except FileNotFoundError:
        hint = "" if path.suffix else "; of a set on the Hub, download its file and name that"
        raise DataError(f"no such data file: {path}{hint}") from None
    except OSError as error:
        raise DataError(f"cannot read data file {path}: {error.strerror}") from None


def scan_problems(handle: IO[bytes], format: str, *, columns: DataColumns = AS_NAMED, source: str) -> Iterator[Problem]:
    """Problems of a file that can seek, each checked; `source` is how messages call the file. Of a format of auto, the
    first row decides how all are read.

    Raises DataError at the first fault, and at the end when there was no problem at all.
    """
    _require_known(format, source)
    reading: Reading | None = None
    first_row: dict[str, str] = {}
    for line, fields in rows_of(handle, source=source):
        reading = reading or choose_reading(format, columns, line, fields)
        problem = reading.problem(line, fields)
        if (earlier := first_row.setdefault(problem.id, line.name)) != line.name:
            line.fail(
                f"the id {problem.id!r} was already used on {earlier}; ids must be unique. Name another column with "
                "data.columns.id, or number the rows with data.columns.id: ''"
            )
        yield problem
    if not first_row:
        raise DataError(f"{source}: the file holds no problems")


@dataclass(frozen=True, slots=True)
class Detected:
    """What a file is, from its beginning."""

    container: Container
    reading: Reading


def detect(handle: IO[bytes], format: str, *, columns: DataColumns = AS_NAMED, source: str) -> Detected:
    """How `scan_problems` reads the file. Raises DataError."""
    _require_known(format, source)
    container, _ = container_of(handle, source=source)
    for line, fields in rows_of(handle, source=source):
        return Detected(container, choose_reading(format, columns, line, fields))
    raise DataError(f"{source}: the file holds no problems")


def _require_known(format: str, source: str) -> None:
    if format != "auto" and format not in LAYOUTS:
        raise DataError(f"{source}: unknown data format {format!r}; there are auto, {', '.join(LAYOUTS)}")
