"""Problems from files. A fault names file, line or row, what it holds and what was expected; the faults of several
rows are raised together.

Reading is streamed: the platform checks an upload with `scan_problems` without holding it in memory. Nothing is
repaired or skipped silently; only blank lines are passed over.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

from grpo_core.data.containers import Container, Rows, container_of, rows_of
from grpo_core.data.layouts import LAYOUTS
from grpo_core.data.lines import Line, RowFaults
from grpo_core.data.problem import Problem
from grpo_core.data.reading import Reading, choose_reading
from grpo_core.errors import DataError
from grpo_core.specs.fields import DataColumns

AS_NAMED = DataColumns()
"""The columns as the layout names them."""


def load_problems(
    paths: Path | Sequence[Path], format: str, *, columns: DataColumns = AS_NAMED, limit: int | None = None
) -> list[Problem]:
    """The problems of the file, or of the files that are one set, in their order; with `limit` only the first so many,
    and no row after them is read.

    Raises DataError naming file and line or row.
    """
    files = [paths] if isinstance(paths, Path) else paths
    source, faults = str(files[0]), RowFaults()
    _require_known(format, source)
    return list(islice(_problems(rows_of_files(files, faults), format, columns, source, faults), limit))


def rows_of_files(paths: Sequence[Path], faults: RowFaults) -> Rows:
    """Of files that are one set, in their order, each as `containers.rows_of`. Raises DataError."""
    before = 0
    for path in paths:
        line = None
        with _opened(path) as handle:
            for line, fields in rows_of(handle, source=str(path), faults=faults):
                line.before = before
                yield line, fields
        before += line.number if line else 0


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        handle = path.open("rb")
    except FileNotFoundError:
        hint = (
            "" if path.suffix else "; for a dataset on the Hub, give data.hub with its revision (the commit) and split"
        )
        raise DataError(f"no such data file: {path}{hint}") from None
    except OSError as error:
        raise DataError(f"cannot read data file {path}: {error.strerror}") from None
    with handle:
        yield handle


def scan_problems(handle: IO[bytes], format: str, *, columns: DataColumns = AS_NAMED, source: str) -> Iterator[Problem]:
    """Problems of a file that can seek, each checked; `source` is how messages call the file. Of a format of auto, the
    first row decides how all are read.

    Raises DataError after the last row where a row has a fault, with up to MAX_FAULTS of them and no problem after the
    first, and when there was no problem at all.
    """
    _require_known(format, source)
    faults = RowFaults()
    yield from _problems(rows_of(handle, source=source, faults=faults), format, columns, source, faults)


def _problems(rows: Rows, format: str, columns: DataColumns, source: str, faults: RowFaults) -> Iterator[Problem]:
    reading: Reading | None = None
    first_row: dict[str, tuple[str, str]] = {}
    with faults.collected():  # what ends the reading is named after the rows before it
        for line, fields in rows:
            reading = reading or choose_reading(format, columns, line, fields)
            with faults.collected():
                problem = reading.problem(line, fields)
                _require_new_id(line, problem, first_row)
            if not faults:
                yield problem
    faults.raise_any()
    if not first_row:
        raise DataError(f"{source}: the file holds no problems")


def _require_new_id(line: Line, problem: Problem, first_row: dict[str, tuple[str, str]]) -> None:
    row = (line.source, line.name)
    if (earlier := first_row.setdefault(problem.id, row)) != row:
        file = "" if earlier[0] == line.source else f" of {earlier[0]}"
        line.fail(
            f"the id {problem.id!r} was already used on {earlier[1]}{file}; ids must be unique. Name another "
            "column with data.columns.id, or number the rows with data.columns.id: ''"
        )


@dataclass(frozen=True, slots=True)
class Detected:
    """What a file is, from its beginning."""

    container: Container
    reading: Reading


def detect(handle: IO[bytes], format: str, *, columns: DataColumns = AS_NAMED, source: str) -> Detected:
    """How `scan_problems` reads the file. Raises DataError."""
    _require_known(format, source)
    container, _ = container_of(handle, source=source)
    faults = RowFaults()
    for line, fields in rows_of(handle, source=source, faults=faults):
        return Detected(container, choose_reading(format, columns, line, fields))
    faults.raise_any()
    raise DataError(f"{source}: the file holds no problems")


def detect_file(path: Path, format: str, *, columns: DataColumns = AS_NAMED) -> Detected:
    """How `load_problems` reads the file. Raises DataError."""
    with _opened(path) as handle:
        return detect(handle, format, columns=columns, source=str(path))


def _require_known(format: str, source: str) -> None:
    if format != "auto" and format not in LAYOUTS:
        raise DataError(f"{source}: unknown data format {format!r}; there are auto, {', '.join(LAYOUTS)}")
