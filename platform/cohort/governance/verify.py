"""`cohort verify CARD.zip`: is this card exactly as it was sealed, and do its numbers follow from its own items?

Works offline, without Django, database or torch. A card is a file from anywhere: sizes are bounded before anything is
read, names are never used as paths, what cannot be parsed is a reason to reject, not an error, and nothing out of a
card reaches the terminal unescaped.
"""

import argparse
import hashlib
import io
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cohort.governance import recompute
from cohort.governance.card_reader import CardReader, Rejected, read_json
from cohort.governance.digests import CARD_FILE, RECORD_FILE, canonical, data_files_digest, seal_of, sha256
from cohort.governance.markdown import card_markdown
from cohort.governance.schema import SCHEMA, FileEntry, Sealed
from cohort.governance.shown import NOT_PROVEN
from cohort.governance.words import moment, printable
from grpo_core.errors import GrpoError

_LONGEST = 500
"""Characters of a line that is printed."""


class CannotRead(GrpoError):
    """There is no card to check: no such file, or no zip. Not a judgement on a card."""

    code = "cannot_read"
    exit_status = 2


@dataclass(frozen=True)
class Check:
    name: str
    ok: bool
    lines: tuple[str, ...]

    @property
    def detail(self) -> str:
        return "\n".join(self.lines)


@dataclass
class VerifyReport:
    """What was checked, in order. Checks after the first that makes others impossible are missing."""

    path: str
    checks: list[Check] = field(default_factory=list)
    sealed: Sealed | None = None

    @property
    def accepted(self) -> bool:
        return self.sealed is not None and all(check.ok for check in self.checks)

    def run(self, name: str, check: Callable[[], str]) -> bool:
        lines: tuple[str, ...]
        try:
            ok, lines = True, (check(),)
        except Rejected as fault:
            ok, lines = False, fault.lines
        self.checks.append(Check(name, ok, tuple(_plain(line) for line in lines)))
        return ok

    def as_dict(self) -> dict[str, Any]:
        sealed = self.sealed
        return {
            "path": self.path,
            "accepted": self.accepted,
            "seal": sealed.seal if sealed else None,
            "checks": [{"name": check.name, "ok": check.ok, "detail": check.detail} for check in self.checks],
            "does_not_prove": list(NOT_PROVEN),
        }


def verify_card(path: Path) -> VerifyReport:
    """Check the card at `path`. Raises CannotRead when there is none; every other fault is in the report."""
    report = VerifyReport(str(path))
    try:
        handle = path.open("rb")
    except OSError as error:
        raise CannotRead(f"cannot read {path}: {error.strerror}") from None
    with handle:
        try:
            if handle.read(2) != b"PK":
                raise CannotRead(f"{path} is not a card: it is no zip file")
            _check(report, CardReader(handle))
        except OSError as error:
            raise CannotRead(f"cannot read {path}: {error.strerror}") from None
    return report


def _check(report: VerifyReport, reader: CardReader) -> None:
    if not report.run("archive", reader.open):
        return
    raw: dict[str, Any] = {}

    def read_record() -> str:
        content = reader.whole(RECORD_FILE)
        value = read_json(content, RECORD_FILE)
        try:
            same = canonical(value) == content
        except (ValueError, RecursionError):
            same = False
        if not same:
            raise Rejected(f"{RECORD_FILE}: its bytes are not canonical JSON (RFC 8785)")
        try:
            report.sealed = Sealed.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(piece) for piece in first["loc"])
            raise Rejected(f"{RECORD_FILE}: not a {SCHEMA} record: {where}: {first['msg']}") from None
        raw.update(value)
        return f"canonical bytes, valid as {SCHEMA}"

    if not report.run(RECORD_FILE, read_record):
        return
    sealed = report.sealed
    assert sealed is not None
    report.run("record digest", lambda: _equal(sha256(canonical(raw["record"])), sealed.record_digest, "the record"))
    report.run("seal", lambda: _equal(seal_of(raw), sealed.seal, "the record and its list of files"))
    if not report.run("files", lambda: _files(reader, sealed.files)):
        return
    report.run(
        "data files",
        lambda: _equal(data_files_digest(sealed.files), sealed.record.data_files_digest, "the list of data files"),
    )
    report.run(CARD_FILE, lambda: _reading_copy(reader, sealed))
    report.run("config", lambda: _recomputed(lambda: recompute.config(reader.whole("config.yaml"), sealed)))
    report.run("steps", lambda: _recomputed(lambda: recompute.steps(reader.lines("metrics.jsonl"), sealed)))
    report.run(
        "statistics",
        lambda: _recomputed(
            lambda: recompute.statistics(reader.lines("evals/before.jsonl"), reader.lines("evals/after.jsonl"), sealed)
        ),
    )


def _files(reader: CardReader, listed: Sequence[FileEntry]) -> str:
    paths = [entry.path for entry in listed]
    if paths != sorted(set(paths)):
        raise Rejected("the record's list of files is not sorted, or names one twice")
    there = set(reader.entries) - {RECORD_FILE}
    if missing := sorted(set(paths) - there):
        raise Rejected(f"{missing[0]!a} is listed and missing from the card")
    if extra := sorted(there - set(paths)):
        raise Rejected(f"{extra[0]!a} is in the card and not listed")
    if faults := [fault for entry in listed if (fault := _file(reader, entry))]:
        raise Rejected(*faults)
    return f"{len(listed)} files have the size and sha256 that the record lists"


def _file(reader: CardReader, entry: FileEntry) -> str | None:
    if (size := reader.entries[entry.path].size) != entry.size:
        return f"{entry.path}: has {size} bytes, {entry.size} are listed"
    digest = hashlib.sha256()
    try:
        for chunk in reader.chunks(entry.path):
            digest.update(chunk)
    except Rejected as fault:
        return str(fault)
    if digest.hexdigest() != entry.sha256:
        return f"{entry.path}: changed; sha256 is {digest.hexdigest()}, {entry.sha256} is listed"
    return None


def _reading_copy(reader: CardReader, sealed: Sealed) -> str:
    if reader.whole(CARD_FILE) != card_markdown(sealed.record).encode():
        raise Rejected(f"{CARD_FILE}: is not what {RECORD_FILE} says in words")
    return f"is {RECORD_FILE} in words"


def _recomputed(check: Callable[[], str]) -> str:
    try:
        return check()
    except recompute.Differs as fault:
        raise Rejected(str(fault)) from None


def _equal(found: str, said: str, what: str) -> str:
    if found != said:
        raise Rejected(f"{what} has sha256 {found}, and the card says {said}")
    return f"that of {what}"


# ---------------------------------------------------------------------- command


def main(argv: Sequence[str] | None = None) -> int:
    """0 accepted, 1 rejected, 2 nothing to check."""
    parser = argparse.ArgumentParser(prog="cohort verify", description="Check a downloaded card, offline.")
    parser.add_argument("card", metavar="CARD.zip", type=Path)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    arguments = parser.parse_args(argv)
    try:
        report = verify_card(arguments.card)
    except CannotRead as error:
        print(f"cohort verify: {printable(str(error))}", file=sys.stderr)
        return error.exit_status
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # not every terminal knows a minus sign
    if arguments.json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        print(_printed(report))
    return 0 if report.accepted else 1


def _printed(report: VerifyReport) -> str:
    lines = [f"card    {printable(report.path)}"]
    if report.sealed is not None:
        record = report.sealed.record
        told = f"record of {record.title}, sealed {moment(record.sealed_at)}; the run {record.state}"
        lines.append(f"        {_plain(told)}")
    for check in report.checks:
        first, *more = check.lines
        lines.append(f"{'ok' if check.ok else 'FAILED':<7} {check.name}: {first}")
        lines += [f"        {line}" for line in more]
    if report.accepted and report.sealed is not None:
        lines += [
            "accepted: nothing has changed since the card was sealed",
            f"        seal {report.sealed.seal}",
            "        Compare the seal with the one on the record's page.",
            "This does not prove:",
        ]
        lines += [f"  - {line}" for line in NOT_PROVEN]
    else:
        lines.append("rejected: this is not the card as it was sealed")
    return "\n".join(lines)


def _plain(line: str) -> str:
    """One line that may hold text out of a card, as it is safe to print."""
    return printable(line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…")


if __name__ == "__main__":
    sys.exit(main())
