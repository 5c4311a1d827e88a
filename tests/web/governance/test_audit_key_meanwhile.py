"""The log's key replaced by one process while another is about to sign."""

import shutil
from pathlib import Path

import pytest

from cohort.audit import keys
from cohort.audit import services as audit
from cohort.audit.check import check
from cohort.environment import environment
from cohort.evidence.keys import generate, load

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_key_replaced_between_numbering_and_signing_signs_nothing_before_its_own_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries 0 and 1 are numbered, entry 1 is under no head; then the key changes before another process signs."""
    own_key = tmp_path / "key.pem"
    shutil.copy(environment().signing_key_path, own_key)
    monkeypatch.setattr(environment(), "signing_key_file", own_key)
    audit.checkpoint()
    audit.log(actor="platform", kind="thing_done", subject="thing:1")
    new = generate("test.example/log")
    new.write(keys.coming(own_key))
    numbered = audit.integrate

    def replaced_after() -> int:
        monkeypatch.setattr(audit, "integrate", numbered)
        count = numbered()
        audit.rotate_key(old=load(own_key), new=new)
        return count

    monkeypatch.setattr(audit, "integrate", replaced_after)
    row = audit.checkpoint()
    assert (row.size, row.key.since_size) == (3, 2)
    assert check()
