"""The audit log of a whole `cohort up`: its key made once, its head signed by the worker, checked by the command."""

import json
import re
import signal
import stat
import subprocess
import urllib.request
from pathlib import Path

import pytest

from cohort.evidence.checkpoint import parse
from cohort.evidence.keys import load, parse_vkey
from cohort.evidence.note import open_note
from tests.processes import cohort, up, wait_for

pytestmark = pytest.mark.e2e


def fetched(address: str) -> str:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(address, timeout=20) as reply:
            return reply.read().decode()
    except urllib.error.HTTPError:
        return ""


def test_the_log_is_signed_served_checked_and_its_key_replaced(cohort_home: Path, tmp_path: Path) -> None:
    home, key = str(cohort_home), cohort_home / "signing-key.pem"
    repository = tmp_path / "log.git"
    subprocess.run(["git", "init", "--quiet", "--bare", str(repository)], check=True)
    with up(cohort_home) as (started, address):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        first = load(key)
        assert first.name == "127.0.0.1/log"
        assert cohort("user", "ann", "--project", "adders", "--home", home).returncode == 0
        note = wait_for(lambda: fetched(f"{address}/log/checkpoint"), "no checkpoint was signed")
        keys = [parse_vkey(vkey) for vkey in json.loads(fetched(f"{address}/log/keys.json"))["keys"]]
        assert keys == [first.public_key]
        assert parse(open_note(note, keys).text).size >= 1
        kept = tmp_path / "kept"
        kept.write_text(note, encoding="utf-8")

        signed = cohort("audit", "checkpoint", "--home", home)
        assert signed.returncode == 0, signed.stderr
        rotated = cohort("audit", "rotate-key", "--home", home)
        assert rotated.returncode == 0, rotated.stderr
        assert load(key).vkey != first.vkey
        assert len(open_note(fetched(f"{address}/log/checkpoint"), [first.public_key]).verified) == 1
        pushed = cohort("audit", "push", "--home", home, COHORT_LOG_GIT=str(repository))
        assert pushed.returncode == 0, pushed.stderr
        assert "pushed the checkpoint of" in pushed.stdout
        checked = cohort("audit", "check", "--against", str(kept), "--home", home)
        assert checked.returncode == 0, checked.stderr
        assert re.search(r"good  2 keys, each signed for by the one before", checked.stdout)
        assert started.end(signal.SIGINT) == 0

    # Nothing running: the commands bring the database up for themselves. Somebody keeps a checkpoint of another log.
    kept.write_text(note.replace("127.0.0.1/log", "example.org/log", 1), encoding="utf-8")
    refused = cohort("audit", "check", "--against", str(kept), "--home", home)
    assert refused.returncode == 1
    assert "cohort: " in refused.stderr
    assert "Traceback" not in refused.stderr

    key.unlink()
    lost = cohort("up", "--home", home, "--port", "0")
    assert lost.returncode == 1
    assert "the audit log's signing key" in lost.stderr
    assert "is gone. Put it back from your copy" in lost.stderr
