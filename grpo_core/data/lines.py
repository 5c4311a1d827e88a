"""One row of a file, read so that every fault names file, line or row, what was found and what was expected. Lines
are streamed: none is held beyond its turn, and none is read further than its limit.
"""

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import islice
from typing import IO, Any, Final, Literal, NoReturn

from grpo_core.errors import DataError
from grpo_core.text import finite_number, first_repeated

MAX_LINE_BYTES = 1024 * 1024
MOST_BLANK = 1_000_000
"""Lines without anything on them: each costs as much as a row to read, and a byte to send."""
MAX_ID_CHARS = 200
NAMES_SHOWN = 10
"""Fields of a line that a message names."""
MAX_FAULTS = 20
"""Rows that one refusal of a file names."""
MISSING: Final = object()
"""In place of a field that is not there, which null is."""


def lines_of(handle: IO[bytes], source: str) -> Iterator[bytes]:
    """Lines, none held further than one byte past the limit, so that a file without newlines cannot fill memory. Who
    reads them refuses one that is longer; its rest is passed over, so that the next line has its own number. Raises
    DataError for a file of more than MOST_BLANK empty ones."""
    blank = 0
    while line := handle.readline(MAX_LINE_BYTES + 1):
        blank += line.isspace()
        if blank > MOST_BLANK:
            raise DataError(f"{source} has more than {MOST_BLANK:,} empty lines; take them out")
        yield line
        while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            line = handle.readline(MAX_LINE_BYTES + 1)


class RowsRefused(DataError):
    """All that is wrong with a file's rows, a line each, up to MAX_FAULTS."""


class RowFaults:
    """Faults of a file's rows, raised together, so that a person mends them in one go.

    After the first, the rest of the file is read for further faults alone: nothing of it is to be used.
    """

    def __init__(self) -> None:
        self._messages: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._messages)

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Around the reading of one row, or of all. Raises RowsRefused once there are as many as one refusal names."""
        try:
            yield
        except RowsRefused:
            raise
        except DataError as error:
            self._messages.append(str(error))
            if len(self._messages) == MAX_FAULTS:
                self._messages.append(f"Rows after these {MAX_FAULTS} were not read.")
                self.raise_any()

    def raise_any(self) -> None:
        """To be called at the file's end. Raises RowsRefused with a line for each fault."""
        if self._messages:
            raise RowsRefused("\n".join(self._messages))


class Line:
    """One line of a file, for reading its fields and for saying where a fault is."""

    def __init__(self, source: str, number: int, *, unit: Literal["line", "row"] = "line") -> None:
        """`number` counts from 1. A `unit` of row is for files that are not made of lines."""
        self.source = source
        self.number = number
        self.before = 0
        """Lines of earlier files, where a set has several."""
        self.unit = unit
        self.name = f"{unit} {number}"

    def fail(self, what: str) -> NoReturn:
        raise DataError(f"{self.source}, {self.name}: {what}")

    def parse(
        self, raw: bytes, *, expected: str = '{"prompt": "…", "answer": "…"}', noun: str = "problem"
    ) -> dict[str, Any] | None:
        """The line's JSON object; None for a blank line. `expected` is an example of a right one, `noun` its name in
        messages."""
        if len(raw) > MAX_LINE_BYTES:
            self.fail(f"is longer than {MAX_LINE_BYTES:,} bytes; expected one {noun} a line")
        if self.number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        if not raw.strip():
            return None
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self.fail(f"is not UTF-8 (byte {error.start + 1} of the line); save the file as UTF-8")
        try:
            value = parse_json(text)
        except json.JSONDecodeError as error:
            self.fail(f"is not JSON: {error.msg} at column {error.colno}; found {shown(text)}")
        except (ValueError, RecursionError) as error:
            self.fail(f"is not JSON that can be taken: {error}; found {shown(text)}")
        if not isinstance(value, dict):
            self.fail(f"is {kind_of(value)}; expected an object such as {expected}")
        return value

    def text(self, fields: dict[str, Any], name: str, *, numbers: bool = False) -> str:
        """The text field `name`; with `numbers` a JSON number is taken too, as its text."""
        return self.checked_text(self.value(fields, name), name, numbers=numbers)

    def value(self, fields: dict[str, Any], path: str) -> Any:
        """What the field is, or what is at a dotted path inside of it."""
        if (value := inside(fields, path)) is MISSING:
            self.fail(f"has no field {path!r}; found {names_shown(fields)}")
        return value

    def checked_text(self, value: Any, name: str, *, numbers: bool = False) -> str:
        """`value` of the field `name` as text that can be stored."""
        if numbers and isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            self.fail(f"{name!r} is {kind_of(value)}; expected text{' or a number' if numbers else ''}")
        if "\x00" in value or any("\ud800" <= char <= "\udfff" for char in value):
            self.fail(f"{name!r} holds a NUL or half a surrogate pair, which is not text that can be stored")
        return value

    def prompt(self, fields: dict[str, Any], name: str) -> str:
        """The text field `name`, which must not be empty."""
        prompt = self.text(fields, name)
        if not prompt.strip():
            self.fail(f"{name!r} is empty; expected the problem's text")
        return prompt

    def id(self, fields: dict[str, Any], name: str = "id") -> str:
        """The id in the field `name`; `line-<n>` or `row-<n>` where that is "", or `id` and the row has none."""
        if not name or (name == "id" and name not in fields):
            return f"{self.unit}-{self.before + self.number}"
        given = self.text(fields, name, numbers=True)
        if not 1 <= len(given) <= MAX_ID_CHARS:
            self.fail(f"{name!r} has {len(given)} characters; expected 1 to {MAX_ID_CHARS}")
        return given


def inside(fields: dict[str, Any], path: str) -> Any:
    """The field of this name, else what is at the dotted path; MISSING where there is neither."""
    if path in fields:
        return fields[path]
    value: Any = fields
    for step in path.split("."):
        if isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:
            return MISSING
    return value


def parse_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError, also for a field given twice and a number that is not finite, and
    RecursionError."""
    return row_decoder().decode(text)


@cache
def row_decoder() -> json.JSONDecoder:
    """As `parse_json`, for texts that hold more than one value."""
    return json.JSONDecoder(object_pairs_hook=object_once, parse_constant=_no_constant, parse_float=finite_number)


def names_shown(fields: Collection[str]) -> str:
    """The first names of an object's fields, for a message."""
    names = ", ".join(name[:60] for name in islice(fields, NAMES_SHOWN)) or "no fields"
    return names if len(fields) <= NAMES_SHOWN else f"{names} and {len(fields) - NAMES_SHOWN:,} more"


def object_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads(object_pairs_hook=…)`. Raises ValueError for a field given twice."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError(f"the field {shown(first_repeated(name for name, _ in pairs) or '')} is given twice")
    return fields


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def kind_of(value: Any) -> str:
    """The kind of a JSON value, for a message."""
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def shown(text: str) -> str:
    """The beginning of a text, quoted, for a message."""
    text = text.strip()
    return repr(text if len(text) <= 60 else text[:59] + "…")
