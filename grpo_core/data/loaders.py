"""Problems from files, one a line. A fault names file, line, what was found and what was expected.

Reading is streamed: the platform checks an upload with `scan_problems` without holding it in memory. Nothing is
repaired or skipped silently; only blank lines are passed over.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from grpo_core.data.lines import Line, lines_of, shown
from grpo_core.data.problem import Problem
from grpo_core.errors import DataError
from grpo_core.specs.fields import DataFormat

_GSM8K_ANSWER = re.compile(r"####[ \t]*(-?[0-9][0-9,]*(?:\.[0-9]+)?)\s*\Z")


def load_problems(path: Path, format: str, *, limit: int | None = None) -> list[Problem]:
    """The problems of the file, in its order; with `limit` only the first so many, and no line after them is read.

    Raises DataError naming file and line.
    """
    try:
        with path.open("rb") as handle:
            return list(islice(scan_problems(lines_of(handle), format, source=str(path)), limit))
    except FileNotFoundError:
        raise DataError(f"no such data file: {path}") from None
    except OSError as error:
        raise DataError(f"cannot read data file {path}: {error.strerror}") from None


def scan_problems(lines: Iterable[bytes], format: str, *, source: str) -> Iterator[Problem]:
    """Problems from lines as they come, each checked; `source` is how messages call the file.

    Raises DataError at the first fault, and at the end when there was no problem at all.
    """
    read = _READERS.get(format)
    if read is None:
        raise DataError(f"{source}: unknown data format {format!r}; there are {', '.join(_READERS)}")
    first_line: dict[str, int] = {}
    for number, raw in enumerate(lines, start=1):
        line = Line(source, number)
        fields = line.parse(raw)
        if fields is None:
            continue
        problem = read(line, fields)
        if (earlier := first_line.setdefault(problem.id, number)) != number:
            line.fail(f"the id {problem.id!r} was already used on line {earlier}; ids must be unique")
        yield problem
    if not first_line:
        raise DataError(f"{source}: the file holds no problems; expected one JSON object a line")


def _read_jsonl(line: Line, fields: dict[str, Any]) -> Problem:
    return Problem(
        id=line.id(fields),
        prompt=line.prompt(fields, "prompt"),
        answer=line.text(fields, "answer", numbers=True),
        meta={name: value for name, value in fields.items() if name not in ("id", "prompt", "answer")},
    )


def _read_gsm8k(line: Line, fields: dict[str, Any]) -> Problem:
    solution = line.text(fields, "answer")
    match = _GSM8K_ANSWER.search(solution)
    if match is None:
        line.fail(f"'answer' does not end in '#### number'; it ends in {shown(solution[-40:])}")
    rest = {name: value for name, value in fields.items() if name not in ("id", "question", "answer")}
    return Problem(
        id=line.id(fields),
        prompt=line.prompt(fields, "question"),
        answer=match.group(1).replace(",", ""),
        meta={**rest, "solution": solution},
    )


_READERS: dict[str, Callable[[Line, dict[str, Any]], Problem]] = {"jsonl": _read_jsonl, "gsm8k": _read_gsm8k}
assert set(_READERS) == set(get_args(DataFormat))
