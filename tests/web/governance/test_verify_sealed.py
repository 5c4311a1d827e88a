"""`cohort verify` on cards the platform itself sealed: of every audience, one byte of every file, an older card."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cohort import artifacts
from cohort.audit import services as audit
from cohort.evidence.record import AUDIENCES
from cohort.evidence.verify import main, verify_card
from cohort.governance.models import Record
from cohort.runs.models import Run
from tests import sealed_run
from tests.forged_card import each_changed

pytestmark = pytest.mark.django_db(transaction=True)


def stored(record: Record, audience: str, folder: Path) -> Path:
    path = folder / f"{record.pk}-{audience}.zip"
    path.write_bytes(b"".join(artifacts.read_chunks(record.card(audience).artifact)))
    return path


def test_cards_as_sealed_are_accepted_for_every_audience(
    launch: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = sealed_run.sealed(launch())
    vkey = audit.public_keys()[0][-1]
    for audience in AUDIENCES:
        path = stored(record, audience, tmp_path)
        assert main([str(path), "--key", vkey]) == 0, capsys.readouterr().out
        printed = capsys.readouterr().out
        assert "heldout: 30.0 % before, 80.0 % after of 100 problems, +50.0 points" in printed
        assert record.seal in printed
    for name, changed in each_changed(path):
        assert verify_card(changed).exit_status == 1, name


def test_two_cards_of_one_log(launch: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    older, newer = (stored(sealed_run.sealed(launch()), "public", tmp_path) for _ in range(2))
    assert main([str(newer), "--against", str(older)]) == 0, capsys.readouterr().out
    assert "the cards are of different runs" in capsys.readouterr().out
    assert main([str(older), "--against", str(newer)]) == 2
    assert "give the two the other way" in capsys.readouterr().out
