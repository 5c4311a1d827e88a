"""Cards to check: one as the platform sealed it, and those that somebody made of it."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

from cohort import artifacts
from cohort.evidence.verify import verify_card
from cohort.evidence.zip_layout import entry_info
from cohort.runs.models import Run
from tests.factories import sealed_run


def sealed_card(run: Run, folder: Path, audience: str = "internal") -> Path:
    """The card of a launched run, as a person of that audience downloads it."""
    path = folder / "card.zip"
    path.write_bytes(b"".join(artifacts.read_chunks(sealed_run.sealed(run).card(audience).artifact)))
    return path


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def repack(path: Path, files: dict[str, bytes]) -> Path:
    """A zip laid out exactly as a card is, with these files."""
    out = path.with_name("changed.zip")
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(entry_info(name), content)
    return out


def each_changed(path: Path) -> Iterator[tuple[str, Path]]:
    """(file, card with one byte of that file's content changed), for every file of the card."""
    files = contents(path)
    for name, content in files.items():
        changed = bytearray(content)
        changed[len(changed) // 2] ^= 1
        yield name, repack(path, {**files, name: bytes(changed)})


def failed(path: Path) -> dict[str, str]:
    """What was found wrong, by check."""
    report = verify_card(path)
    assert not report.accepted
    return {check.name: check.detail for check in report.checks if check.status in ("failed", "cannot")}
