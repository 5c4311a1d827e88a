"""Cards to check: one as the platform sealed it, and those that a forger makes of it."""

import hashlib
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import rfc8785

from cohort import artifacts
from cohort.governance import verify
from cohort.governance.markdown import card_markdown
from cohort.governance.schema import Record
from cohort.governance.zip_layout import entry_info
from cohort.runs.models import Run
from tests import sealed_run


def sealed_card(run: Run, folder: Path) -> Path:
    """The card of a launched run, as a person downloads it."""
    path = folder / "card.zip"
    path.write_bytes(b"".join(artifacts.read_chunks(sealed_run.sealed(run).card_artifact)))
    return path


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def repack(path: Path, files: dict[str, bytes]) -> Path:
    """A zip laid out exactly as a card is, with these files."""
    out = path.with_name("changed.zip")
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            with archive.open(entry_info(name), "w") as entry:
                entry.write(content)
    return out


def each_changed(path: Path) -> Iterator[tuple[str, Path]]:
    """(file, card with one byte of that file's content changed), for every file of the card."""
    files = contents(path)
    for name, content in files.items():
        changed = bytearray(content)
        changed[len(changed) // 2] ^= 1
        yield name, repack(path, {**files, name: bytes(changed)})


def unchanged(record: dict[str, Any]) -> None:
    pass


def reseal(
    files: dict[str, bytes], change: Callable[[dict[str, Any]], None] = unchanged, *, rewrite: bool = True
) -> dict[str, bytes]:
    """What a forger does who knows all digests: change the record, write CARD.md anew from it (without `rewrite` it
    stays as it is in `files`), then make every digest right again."""
    document = json.loads(files["record.json"])
    change(document["record"])
    if rewrite:
        files = {**files, "CARD.md": card_markdown(Record.model_validate(document["record"])).encode()}
    listed = [
        {"path": name, "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        for name, content in sorted(files.items())
        if name != "record.json"
    ]
    data = [entry for entry in listed if entry["path"] not in ("CARD.md", "card.html")]
    document["record"]["data_files_digest"] = hashlib.sha256(rfc8785.dumps(data)).hexdigest()
    document["record_digest"] = hashlib.sha256(rfc8785.dumps(document["record"])).hexdigest()
    document["files"] = listed
    del document["seal"]
    document["seal"] = hashlib.sha256(rfc8785.dumps(document)).hexdigest()
    return {**files, "record.json": rfc8785.dumps(document)}


def failed(path: Path) -> dict[str, str]:
    """What was found wrong, by check."""
    report = verify.verify_card(path)
    assert not report.accepted
    return {check.name: check.detail for check in report.checks if not check.ok}
