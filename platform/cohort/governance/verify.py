"""`cohort verify CARD.zip`: is this card exactly as it was sealed, and do its numbers follow from its own items?

Works offline, without Django, database or torch. A card is a file from anywhere: sizes are bounded before anything is
read, names are never used as paths, and what cannot be parsed is a reason to reject, not an error.
"""

import argparse
import hashlib
import json
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cohort.governance import recompute
from cohort.governance.digests import RECORD_FILE, canonical, data_files_digest, seal_of, sha256
from cohort.governance.schema import SCHEMA, FileEntry, Sealed
from cohort.governance.shown import NOT_PROVEN
from cohort.governance.words import moment
from cohort.governance.zip_layout import layout_fault
from grpo_core.errors import GrpoError

MAX_RECORD_BYTES = 64 * 1024**2
MAX_TOTAL_BYTES = 4 * 1024**3
_CHUNK = 1 << 20


class CannotRead(GrpoError):
    """There is no card to check: no such file, or no zip. Not a judgement on a card."""

    code = "cannot_read"
    exit_status = 2


class Rejected(Exception):
    """What a check found."""


@dataclass(frozen=True)
class Check:
    name: str
    ok: bool
    detail: str


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
        try:
            self.checks.append(Check(name, True, check()))
        except Rejected as fault:
            self.checks.append(Check(name, False, str(fault)))
        return self.checks[-1].ok

    def as_dict(self) -> dict[str, Any]:
        sealed = self.sealed
        return {
            "path": self.path,
            "accepted": self.accepted,
            "record_digest": sealed.record_digest if sealed else None,
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
        if handle.read(2) != b"PK":
            raise CannotRead(f"{path} is not a card: it is no zip file")
        try:
            archive = zipfile.ZipFile(handle)
        except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
            report.checks.append(Check("archive", False, f"the zip is damaged: {error}"))
            return report
        with archive:
            _check(report, _Reader(handle, archive))
    return report


class _Reader:
    """Bounded reading of a zip's entries."""

    def __init__(self, handle: Any, archive: zipfile.ZipFile) -> None:
        self._handle = handle
        self._archive = archive
        self.infos = {info.filename: info for info in archive.infolist()}

    def archive_check(self) -> str:
        names = [info.filename for info in self._archive.infolist()]
        for name in names:
            pieces = name.split("/")
            if name.startswith("/") or "\\" in name or "\0" in name or any(p in ("", ".", "..") for p in pieces):
                raise Rejected(f"{name!a} is not the name of a file in a card")
        if len(self.infos) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise Rejected(f"{twice!a} is there twice")
        if sum(info.file_size for info in self._archive.infolist()) > MAX_TOTAL_BYTES:
            raise Rejected(f"it would unpack to more than {MAX_TOTAL_BYTES:,} bytes")
        if fault := layout_fault(self._handle, self._archive):
            raise Rejected(fault)
        if RECORD_FILE not in self.infos:
            raise Rejected(f"there is no {RECORD_FILE}")
        return f"{len(names)} files, nothing hidden between them and none twice"

    def chunks(self, name: str, most: int) -> Iterator[bytes]:
        """Content of an entry, never more than `most` bytes and one. Raises Rejected when it cannot be unpacked."""
        left = most + 1
        try:
            with self._archive.open(self.infos[name]) as entry:
                while left > 0 and (chunk := entry.read(min(left, _CHUNK))):
                    left -= len(chunk)
                    yield chunk
        except (zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError, RuntimeError) as error:
            raise Rejected(f"{name}: cannot be unpacked: {error}") from None
        except Exception as error:  # zlib.error has no common base with the others
            if type(error).__module__ != "zlib":
                raise
            raise Rejected(f"{name}: cannot be unpacked: {error}") from None

    def whole(self, name: str, most: int) -> bytes:
        content = b"".join(self.chunks(name, most))
        if len(content) > most:
            raise Rejected(f"{name}: larger than {most:,} bytes")
        return content

    def lines(self, name: str) -> Iterator[Any]:
        """JSON values of a file of lines. Raises Rejected for a line that is none."""
        if name not in self.infos:
            return
        rest = b""
        number = 0
        for chunk in self.chunks(name, self.infos[name].file_size):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                number += 1
                yield _json(line, f"{name}, line {number}")
        if rest:
            raise Rejected(f"{name}: the last line has no end")


def _check(report: VerifyReport, reader: _Reader) -> None:
    if not report.run("archive", reader.archive_check):
        return
    raw: dict[str, Any] = {}

    def read_record() -> str:
        content = reader.whole(RECORD_FILE, MAX_RECORD_BYTES)
        value = _json(content, RECORD_FILE)
        try:
            report.sealed = Sealed.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(piece) for piece in first["loc"])
            raise Rejected(f"{RECORD_FILE}: not a {SCHEMA} record: {where}: {first['msg']}") from None
        try:
            same = canonical(value) == content
        except (ValueError, RecursionError):
            same = False
        if not same:
            raise Rejected(f"{RECORD_FILE}: its bytes are not canonical JSON (RFC 8785)")
        raw.update(value)
        return f"canonical bytes, valid as {SCHEMA}"

    if not report.run(RECORD_FILE, read_record):
        return
    sealed = report.sealed
    assert sealed is not None
    report.run("record digest", lambda: _equal(sha256(canonical(raw["record"])), sealed.record_digest, "the record"))
    report.run("seal", lambda: _equal(seal_of(raw), sealed.seal, RECORD_FILE))
    if not report.run("files", lambda: _files(reader, sealed.files)):
        return
    report.run(
        "data files",
        lambda: _equal(data_files_digest(sealed.files), sealed.record.data_files_digest, "the list of data files"),
    )
    report.run("config", lambda: _recomputed(lambda: recompute.config(reader.whole("config.yaml", 1 << 24), sealed)))
    report.run("steps", lambda: _recomputed(lambda: recompute.steps(reader.lines("metrics.jsonl"), sealed)))
    report.run(
        "statistics",
        lambda: _recomputed(
            lambda: recompute.statistics(reader.lines("evals/before.jsonl"), reader.lines("evals/after.jsonl"), sealed)
        ),
    )


def _files(reader: _Reader, listed: Sequence[FileEntry]) -> str:
    paths = [entry.path for entry in listed]
    if paths != sorted(set(paths)):
        raise Rejected("the record's list of files is not sorted, or names one twice")
    there = set(reader.infos) - {RECORD_FILE}
    if missing := sorted(set(paths) - there):
        raise Rejected(f"{missing[0]!a} is listed and missing from the card")
    if extra := sorted(there - set(paths)):
        raise Rejected(f"{extra[0]!a} is in the card and not listed")
    faults = []
    for entry in listed:
        digest, size = hashlib.sha256(), 0
        try:
            for chunk in reader.chunks(entry.path, entry.size):
                digest.update(chunk)
                size += len(chunk)
        except Rejected as fault:
            faults.append(str(fault))
            continue
        if size != entry.size:
            faults.append(
                f"{entry.path}: has {'more than ' if size > entry.size else ''}{min(size, entry.size)} bytes, "
                f"{entry.size} are listed"
            )
        elif digest.hexdigest() != entry.sha256:
            faults.append(f"{entry.path}: changed; sha256 is {digest.hexdigest()}, {entry.sha256} is listed")
    if faults:
        raise Rejected("\n".join(faults))
    return f"{len(listed)} files have the size and sha256 that the record lists"


def _recomputed(check: Callable[[], str]) -> str:
    try:
        return check()
    except recompute.Differs as fault:
        raise Rejected(str(fault)) from None


def _equal(found: str, said: str, what: str) -> str:
    if found != said:
        raise Rejected(f"{what} has sha256 {found}, and the card says {said}")
    return f"sha256 {found}"


def _json(content: bytes, where: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Rejected(f"{where}: not JSON: {error}") from None


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
        print(f"cohort verify: {error}", file=sys.stderr)
        return error.exit_status
    if arguments.json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        print(_printed(report))
    return 0 if report.accepted else 1


def _printed(report: VerifyReport) -> str:
    lines = [f"card    {report.path}"]
    if report.sealed is not None:
        record = report.sealed.record
        lines.append(f"        record of {record.title!a}, sealed {moment(record.sealed_at)}; the run {record.state}")
    for check in report.checks:
        first, *more = check.detail.splitlines()
        lines.append(f"{'ok' if check.ok else 'FAILED':<7} {check.name}: {first}")
        lines += [f"        {line}" for line in more]
    if report.accepted:
        lines += ["accepted: nothing has changed since the card was sealed", "This does not prove:"]
        lines += [f"  - {line}" for line in NOT_PROVEN]
    else:
        lines.append("rejected: this is not the card as it was sealed")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
