"""`cohort verify` on cards the platform itself sealed: of every audience, one byte of every file, an older card."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cohort import artifacts
from cohort.audit import services as audit
from cohort.evidence.keys import parse_vkey
from cohort.evidence.record import AUDIENCES
from cohort.evidence.verify import verify_card
from cohort.evidence.verify.check import Beside
from cohort.governance.models import Record
from cohort.runs.models import Run
from tests.factories import sealed_run
from tests.factories.forged import each_changed
from tests.factories.small_cards import faults

pytestmark = pytest.mark.django_db(transaction=True)


def stored(record: Record, audience: str, folder: Path) -> Path:
    path = folder / f"{record.pk}-{audience}.zip"
    path.write_bytes(b"".join(artifacts.read_chunks(record.card(audience).artifact)))
    return path


def test_cards_as_sealed_are_accepted_for_every_audience(launch: Callable[..., Run], tmp_path: Path) -> None:
    record = sealed_run.sealed(launch())
    beside = Beside(key=parse_vkey(audit.public_keys()[0][-1]))
    for audience in AUDIENCES:
        path = stored(record, audience, tmp_path)
        report = verify_card(path, beside)
        assert (report.exit_status, report.seal) == (0, record.seal), faults(report)
        (statistics,) = [one.detail for one in report.checks if one.name == "statistics"]
        assert statistics.startswith("heldout: 30.0 % before, 80.0 % after of 100 problems, +50.0 points")
    for name, changed in each_changed(path):
        assert verify_card(changed).exit_status == 1, name


def test_two_cards_of_one_log(launch: Callable[..., Run], tmp_path: Path) -> None:
    older, newer = (stored(sealed_run.sealed(launch()), "public", tmp_path) for _ in range(2))
    with older.open("rb") as first, newer.open("rb") as second:
        assert verify_card(newer, Beside(older=first)).exit_status == 0
        assert list(faults(verify_card(older, Beside(older=second)))) == ["older card"]
