"""Those outside who answer, but a byte or a command at a time, do not hold a push: one deadline ends all of it."""

import base64
import hashlib
import shutil
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from cohort.audit import git_push, witness, witness_request
from cohort.audit.models import LogPush
from cohort.audit.push import push
from cohort.audit.witness import WitnessFault, WitnessKey, cosigned
from cohort.environment import environment
from tests.web.governance.test_audit_push import grow
from tests.web.governance.test_audit_push import repository as repository

NAME = "witness.example/w1"
PUBLIC = bytes(range(32))
KEY_ID = hashlib.sha256(NAME.encode() + b"\n\x04" + PUBLIC).digest()[:4].hex()
VKEY = f"{NAME}+{KEY_ID}+{base64.b64encode(bytes([4]) + PUBLIC).decode()}"
NOTE = "test.example/log\n9\nAAAA\n\n— test.example/log AAAA\n"
PACE = 0.1
DRIPS = 200
"""After so many bytes an answer ends: without a deadline it is told another way, some 20 s later."""
OK = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n"
OTHER_SIZE = b"HTTP/1.0 409 Conflict\r\nContent-Type: text/x.tlog.size\r\n\r\n"


@contextmanager
def dripping(*answers: tuple[bytes, bytes]) -> Iterator[tuple[str, list[bytes]]]:
    """(its address, the requests that it got) of a witness whose n-th answer is (sent at once, and then dripped)."""
    asked: list[bytes] = []
    ended = threading.Event()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            length = 0
            while (line := self.rfile.readline()).strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            body = self.rfile.read(length)
            if not body:  # who asked was ended between connecting and asking
                return
            asked.append(body)
            at_once, dripped = answers[len(asked) - 1]
            try:
                self.wfile.write(at_once)
                for byte in dripped:
                    if ended.wait(PACE):
                        return
                    self.wfile.write(bytes([byte]))
            except OSError:  # who asked is gone
                return

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = False

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            ended.set()
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def ask(url: str, seconds: float) -> None:
    cosigned(url, WitnessKey.parse(VKEY), NOTE, old=0, proof=lambda _: [], seconds=seconds)


ANSWERS = {
    "status line": (b"", b"HTTP/1.0 200 OK\r\nX-Long: " + b"x" * DRIPS),
    "headers": (b"HTTP/1.0 200 OK\r\n", b"X: y\r\n" * (DRIPS // 6)),
    "refusal": (b"HTTP/1.0 404 Not Found\r\n\r\n", b"x" * DRIPS),
    "body": (OK, b"x" * DRIPS),
}


@pytest.mark.parametrize("part", ["body", *(pytest.param(one, marks=pytest.mark.slow) for one in [*ANSWERS][:3])])
def test_a_witness_that_drips_is_left(part: str) -> None:
    with dripping(ANSWERS[part]) as (url, _), pytest.raises(WitnessFault, match=r"took longer than 1\.5 s"):
        ask(url, 1.5)


def test_both_requests_have_one_deadline_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first takes 58 s by the clock and the second 3.6 s; each is within 60 s, and both are not."""
    clock = iter([0.0, 58.0])
    first = (OTHER_SIZE[:-6], OTHER_SIZE[-6:] + b"5\n")
    second = (OK[:-36], OK[-36:])
    with dripping(first, second) as (url, asked), monkeypatch.context() as patch:
        patch.setattr(witness, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        with pytest.raises(WitnessFault, match=r"took longer than 60 s for its whole answer"):
            ask(url, 60)
        # Where a program takes long to start, the second is ended before its request is made.
        assert [body.split(b"\n")[0] for body in asked] in ([b"old 0", b"old 5"], [b"old 0"])
        assert next(clock, None) is None
    with dripping(second) as (url, _), pytest.raises(WitnessFault, match="without a cosignature"):
        ask(url, 60)  # by itself it is no fault of time


@pytest.mark.django_db
def test_a_push_goes_on_to_the_others_and_tells(monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    monkeypatch.setattr(witness, "SECONDS", 1)
    monkeypatch.setattr(environment(), "log_witness_key", VKEY)
    grow()
    with dripping((OK, b"x" * DRIPS)) as (url, _):
        monkeypatch.setattr(environment(), "log_witness", url)
        told = {one.target: one for one in push()}
    assert (told["git"].good, told["witness"].good) == (True, False)
    assert "took longer than 1 s" in LogPush.objects.get(target="witness").error


def test_the_request_ends_by_itself_when_nobody_waits_for_it() -> None:
    """Who started it may have been killed."""
    with dripping((OK, b"x" * DRIPS)) as (url, _):
        words = [sys.executable, "-I", witness_request.__file__, f"{url}/add-checkpoint", "1.5"]
        done = subprocess.run(words, input=b"old 0\n", capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGALRM, b"")


def test_a_request_that_was_killed_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "killed.py"
    program.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    monkeypatch.setattr(witness_request, "__file__", str(program))
    with pytest.raises(WitnessFault, match=r"the request to http://127\.0\.0\.1:9 ended with status -9"):
        ask("http://127.0.0.1:9", 30)


@pytest.mark.slow
@pytest.mark.django_db
def test_git_has_one_deadline_for_all_its_commands(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each takes 0.7 s and is well within the 3 s; all nine are not."""
    real = shutil.which("git")
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\nsleep 0.7\nexec {real} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(slow.parent), prepend=":")
    monkeypatch.setattr(git_push, "SECONDS", 3)
    grow()
    assert "the push took longer than 3 s, and was ended at git" in push()[0].words
