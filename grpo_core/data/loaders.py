"""Problems from files, one a line. A fault is told with file, line, what was found and what was expected.

Reading is streamed: the platform checks an upload with `scan_problems` without holding it in memory. Nothing is
repaired or skipped silently; only blank lines are passed over.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, NoReturn, get_args

from grpo_core.config import DataFormat
from grpo_core.data.problem import Problem
from grpo_core.errors import DataError

MAX_LINE_BYTES = 1024 * 1024
MAX_ID_CHARS = 200

_GSM8K_ANSWER = re.compile(r"####[ \t]*(-?[0-9][0-9,]*(?:\.[0-9]+)?)\s*\Z")


def load_problems(path: Path, format: str, *, limit: int | None = None) -> list[Problem]:
    """The problems of the file, in its order; with `limit` only the first so many, and no line after them is read.

    Raises DataError naming file and line.
    """
    try:
        with path.open("rb") as handle:
            return list(islice(scan_problems(_lines(handle), format, source=str(path)), limit))
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
        line = _Line(source, number)
        fields = line.parse(raw)
        if fields is None:
            continue
        problem = read(line, fields)
        if (earlier := first_line.setdefault(problem.id, number)) != number:
            line.fail(f"the id {problem.id!r} was already used on line {earlier}; ids must be unique")
        yield problem
    if not first_line:
        raise DataError(f"{source}: the file holds no problems; expected one JSON object a line")


def _lines(handle: IO[bytes]) -> Iterator[bytes]:
    """Lines, none read further than one byte past the limit, so that a file without newlines cannot fill memory."""
    while line := handle.readline(MAX_LINE_BYTES + 1):
        yield line


class _Line:
    """One line of a file, for reading its fields and for saying where a fault is."""

    def __init__(self, source: str, number: int) -> None:
        self.source = source
        self.number = number

    def fail(self, what: str) -> NoReturn:
        raise DataError(f"{self.source}, line {self.number}: {what}")

    def parse(self, raw: bytes) -> dict[str, Any] | None:
        """The line's JSON object; None for a blank line."""
        if len(raw) > MAX_LINE_BYTES:
            self.fail(f"is longer than {MAX_LINE_BYTES:,} bytes; expected one problem a line")
        if self.number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        if not raw.strip():
            return None
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self.fail(f"is not UTF-8 (byte {error.start + 1} of the line); save the file as UTF-8")
        try:
            value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
        except json.JSONDecodeError as error:
            self.fail(f"is not JSON: {error.msg} at column {error.colno}; found {_shown(text)}")
        except (ValueError, RecursionError) as error:
            self.fail(f"is not JSON that can be taken: {error}; found {_shown(text)}")
        if not isinstance(value, dict):
            self.fail(f'is {_kind(value)}; expected an object such as {{"prompt": "…", "answer": "…"}}')
        return value

    def text(self, fields: dict[str, Any], name: str, *, numbers: bool = False) -> str:
        """The text field `name`; with `numbers` a JSON number is taken too, as its text."""
        if name not in fields:
            found = ", ".join(fields) if fields else "no fields"
            self.fail(f"has no field {name!r}; found {found}")
        value = fields[name]
        if numbers and isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            self.fail(f"{name!r} is {_kind(value)}; expected text{' or a number' if numbers else ''}")
        if "\x00" in value or any("\ud800" <= char <= "\udfff" for char in value):
            self.fail(f"{name!r} holds a NUL or half a surrogate pair, which is not text that can be stored")
        return value

    def prompt(self, fields: dict[str, Any], name: str) -> str:
        prompt = self.text(fields, name)
        if not prompt.strip():
            self.fail(f"{name!r} is empty; expected the problem's text")
        return prompt

    def id(self, fields: dict[str, Any]) -> str:
        if "id" not in fields:
            return f"line-{self.number}"
        given = self.text(fields, "id", numbers=True)
        if not 1 <= len(given) <= MAX_ID_CHARS:
            self.fail(f"'id' has {len(given)} characters; expected 1 to {MAX_ID_CHARS}")
        return given


def _read_jsonl(line: _Line, fields: dict[str, Any]) -> Problem:
    return Problem(
        id=line.id(fields),
        prompt=line.prompt(fields, "prompt"),
        answer=line.text(fields, "answer", numbers=True),
        meta={name: value for name, value in fields.items() if name not in ("id", "prompt", "answer")},
    )


def _read_gsm8k(line: _Line, fields: dict[str, Any]) -> Problem:
    solution = line.text(fields, "answer")
    match = _GSM8K_ANSWER.search(solution)
    if match is None:
        line.fail(f"'answer' does not end in '#### number'; it ends in {_shown(solution[-40:])}")
    rest = {name: value for name, value in fields.items() if name not in ("id", "question", "answer")}
    return Problem(
        id=line.id(fields),
        prompt=line.prompt(fields, "question"),
        answer=match.group(1).replace(",", ""),
        meta={**rest, "solution": solution},
    )


_READERS: dict[str, Callable[[_Line, dict[str, Any]], Problem]] = {"jsonl": _read_jsonl, "gsm8k": _read_gsm8k}
assert set(_READERS) == set(get_args(DataFormat))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the field {next(name for name in names if names.count(name) > 1)!r} is given twice")
    return fields


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return kinds[type(value)]


def _shown(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= 60 else text[:59] + "…")
