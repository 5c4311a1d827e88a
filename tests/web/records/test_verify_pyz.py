"""verify.pyz really runs with Python and `cryptography` alone: in a fresh virtual environment, with nothing of ours."""

import hashlib
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import cryptography
import pytest

from cohort.evidence import pyz
from tests.factories.small_cards import Log, Sealed, card, key, packed
from tests.factories.statuses import downloaded

NEEDED = ("cryptography", "cffi", "pycparser", "_cffi_backend*")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python whose packages are `cryptography` and what that needs, copied from here."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False)
    ours = Path(cryptography.__file__).parent.parent
    (theirs,) = (home / "lib").glob("python*/site-packages")
    for pattern in NEEDED:
        for source in ours.glob(pattern):
            target = theirs / source.name
            shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    return home / "bin" / "python"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("cards")
    log = Log()
    older = card(log, Sealed(head={**Sealed().head, "run": 6}))
    newer = card(log)
    (made / "older.zip").write_bytes(packed(older))
    (made / "card.zip").write_bytes(packed(downloaded(log, newer)))
    rows = newer["evals/after.jsonl"].replace(b'"score":0', b'"score":1', 1)
    (made / "changed.zip").write_bytes(packed({**newer, "evals/after.jsonl": rows}))
    (made / "forged.zip").write_bytes(packed(card(Log("forger"))))
    (made / "keys.json").write_bytes(newer["keys.json"])
    (made / "verify.pyz").write_bytes(pyz.build())
    return made


def run(python: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-I", "verify.pyz", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env={"PATH": ""})


def test_cards_are_checked(python: Path, folder: Path, tmp_path: Path) -> None:
    good = run(python, folder, "card.zip", "--against", "older.zip", "--key", key("first").vkey)
    assert (good.returncode, good.stderr, good.stdout.split(":")[0]) == (0, "", "accepted")
    assert "heldout: 30.0 % before, 70.0 % after of 10 problems" in good.stdout
    changed = run(python, folder, "changed.zip")
    assert (changed.returncode, changed.stderr) == (1, "")
    assert "FAILED  sealed files: evals/after.jsonl" in changed.stdout
    assert "FAILED  statistics: evals: heldout." in changed.stdout
    forged = run(python, folder, "forged.zip")
    assert (forged.returncode, forged.stderr, forged.stdout.split(":")[0]) == (3, "", "unknown signer")
    forged = run(python, folder, "forged.zip", "--key", "keys.json")
    assert (forged.returncode, forged.stderr, forged.stdout.split(":")[0]) == (1, "", "changed")
    missing = run(python, folder, "none.zip")
    assert (missing.returncode, missing.stderr.split()[0]) == (2, "verify.pyz:")
    venv.create(tmp_path / "bare", with_pip=False)
    bare = run(tmp_path / "bare" / "bin" / "python", folder, "card.zip")
    assert (bare.returncode, "needs the package cryptography" in bare.stderr) == (2, True)


def test_its_bytes_are_the_same_each_time(tmp_path: Path) -> None:
    pyz.build.cache_clear()
    first = pyz.build()
    out = tmp_path / "out.pyz"
    environment = {"PATH": "", "PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-m", "cohort.evidence.pyz", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert out.read_bytes() == first
    assert done.stdout.split() == [hashlib.sha256(first).hexdigest(), str(out)]


def test_what_is_in_it(folder: Path) -> None:
    with zipfile.ZipFile(folder / "verify.pyz") as archive:
        names = archive.namelist()
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert names == sorted(names)
    assert {"licences/PyYAML.txt", "licences/rfc8785.txt", "cohort/evidence/record.schema.json"} < set(names)
    packages = {name.partition("/")[0] for name in names if "/" in name}
    assert packages == {"cohort", "grpo_core", "rfc8785", "yaml", "licences"}
    ours = [name for name in names if name.startswith("cohort/")]
    assert all(name.startswith(("cohort/evidence/", "cohort/__init__.py")) for name in ours)


def test_a_module_that_imports_what_must_not_go_in_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyz, "_START", "cohort.records.schema")
    with pytest.raises(pyz.NotSelfContained, match="pydantic"):
        pyz._imported()
