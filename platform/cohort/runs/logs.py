"""The log of an attempt: taken from its worker by byte offsets, and read as lines.

What is stored is what was printed, byte for byte; a line is made readable only when it is read: what a progress bar
overwrote is left out, and so are the colours of a terminal.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from django.db import IntegrityError, transaction
from django.db.models import F, Func, IntegerField

from cohort.nodes import leases
from cohort.runs.models import Attempt, LogChunk
from cohort.runs.stored_files import WrongOffset
from grpo_core.protocol.messages import LogReply

LIMIT = 64 * 1024 * 1024
"""Most bytes of one attempt's log that are stored. What comes beyond stays in the worker's `log.txt`."""
CHUNK = 16 * 1024
"""A stretch grows to this size before the next one begins."""

Level = Literal["error", "warning"]
LEVELS: dict[str, re.Pattern[str]] = {
    "error": re.compile(
        r"\b(error|exception|traceback|fatal|failed|critical)\b|[a-z]Error\b|[a-z]Exception\b", re.IGNORECASE
    ),
    "warning": re.compile(r"\bwarn(ing)?\b|[a-z]Warning\b", re.IGNORECASE),
}
"""How lines are told apart, by what they say: what a run prints comes from many libraries and has no common form."""
_STEP = re.compile(r"step (\d+)/")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
LONGEST = 4000
"""Characters of a line that are shown."""


# ---------------------------------------------------------------------- writing


def log_append(*, attempt: Attempt, fence: int, offset: int | None, body: bytes) -> LogReply:
    """Add `body` at byte `offset`, which must be where the log ends; an empty body only returns where that is.

    What is beyond `LIMIT` is not stored, and the reply says `full`. Raises StaleFence and WrongOffset.
    """
    leases.require_current(attempt, fence)
    try:
        with transaction.atomic():
            newest = LogChunk.objects.select_for_update().filter(attempt=attempt).order_by("-offset").first()
            held = newest.offset + len(newest.data) if newest else 0
            if body and offset != held:
                raise WrongOffset(f"the log is held up to byte {held}; this part came for byte {offset}")
            taken = body[: LIMIT - held]
            if newest and taken and len(newest.data) + len(taken) <= CHUNK:
                newest.data = bytes(newest.data) + taken
                newest.save(update_fields=["data"])
            elif taken:
                LogChunk.objects.create(attempt=attempt, offset=held, data=taken)
    except IntegrityError:
        raise WrongOffset("the same part of the log was sent twice at once; ask for its end by an empty part") from None
    return LogReply(received=held + len(taken), full=held + len(taken) >= LIMIT)


# ---------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Line:
    offset: int
    """Of its first byte."""
    end: int
    """Of the first byte behind it."""
    text: str
    whole: bool
    """Whether its end has been printed."""

    @property
    def level(self) -> str:
        """error, warning, or empty."""
        return next((level for level, pattern in LEVELS.items() if pattern.search(self.text)), "")

    @property
    def step(self) -> int | None:
        """The step whose line of progress this is."""
        match = _STEP.match(self.text)
        return int(match[1]) if match else None


def log_size(attempt: Attempt) -> int:
    """Bytes stored."""
    newest = LogChunk.objects.filter(attempt=attempt).order_by("-offset")
    row = (
        newest.annotate(size=Func(F("data"), function="octet_length", output_field=IntegerField()))
        .values_list("offset", "size")
        .first()
    )
    return sum(row) if row else 0


def log_bytes(attempt: Attempt, start: int = 0) -> Iterator[bytes]:
    """What is stored from byte `start` on, in pieces."""
    first = (
        LogChunk.objects.filter(attempt=attempt, offset__lte=start)
        .order_by("-offset")
        .values_list("offset", flat=True)
        .first()
    )
    chunks = LogChunk.objects.filter(attempt=attempt, offset__gte=first or 0).order_by("offset")
    for offset, data in chunks.values_list("offset", "data").iterator(chunk_size=64):
        yield bytes(data)[max(0, start - offset) :]


def log_lines(attempt: Attempt, start: int = 0) -> Iterator[Line]:
    """Lines from byte `start` on, where one must begin. The last one may still be growing."""
    rest, offset = b"", start
    for piece in log_bytes(attempt, start):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield Line(offset, offset + len(line) + 1, _readable(line), whole=True)
            offset += len(line) + 1
    if rest:
        yield Line(offset, offset + len(rest), _readable(rest), whole=False)


def line_start(attempt: Attempt, offset: int, *, back: int) -> int:
    """Where the first line begins that begins at most `back` bytes before `offset`; `offset` for a longer line."""
    start = max(0, offset - back)
    if start == 0:
        return 0
    reached = start - 1  # the line break before a line that begins just there counts
    for piece in log_bytes(attempt, reached):
        if (index := piece.find(b"\n")) >= 0:
            return min(reached + index + 1, offset)
        reached += len(piece)
        if reached >= offset:
            break
    return offset


def offset_of_step(attempt: Attempt, step: int) -> int | None:
    """Where the lines of the step begin: right behind the line of the step before it, or None when no line of a step
    as late was printed."""
    before = 0
    for line in log_lines(attempt):
        if line.step is not None and line.step >= step:
            return before
        if line.step is not None:
            before = line.end
    return None


def _readable(line: bytes) -> str:
    text = line.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode(errors="replace")
    text = _CONTROL.sub("", text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text) - LONGEST:,} more characters)"
