"""The newest checkpoint handed to those outside: a real git repository, and a real witness over HTTP that checks
consistency before it cosigns."""

import base64
import hashlib
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from cohort.audit import git_push
from cohort.audit import services as audit
from cohort.audit.check import check
from cohort.audit.models import LogCheckpoint, LogCosignature, LogPush
from cohort.audit.push import push
from cohort.audit.tasks import push as push_task
from cohort.audit.tree import LogFault
from cohort.environment import environment
from cohort.evidence.checkpoint import Checkpoint, parse
from cohort.evidence.keys import generate, parse_vkey
from cohort.evidence.merkle import verify_consistency
from cohort.evidence.note import NoteError, open_note
from tests.processes import wait_for
from tests.web.governance.test_audit_check import as_owner

pytestmark = pytest.mark.django_db(transaction=True)


def grow(by: int = 1) -> LogCheckpoint:
    for number in range(by):
        audit.log(actor="platform", kind="thing_done", subject=f"thing:{number}")
    return audit.checkpoint()


# ---------------------------------------------------------------------- git


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bare repository, empty, that the log is pushed to."""
    folder = tmp_path / "log.git"
    subprocess.run(["git", "init", "--quiet", "--bare", str(folder)], check=True)
    monkeypatch.setattr(environment(), "log_git", str(folder))
    return folder


def shown(repository: Path, revision: str = "main", file: str = "checkpoint") -> str:
    done = subprocess.run(
        ["git", "-C", str(repository), "show", f"{revision}:{file}"], capture_output=True, check=True, text=True
    )
    return done.stdout


def test_each_checkpoint_is_a_commit_on_the_one_before(repository: Path) -> None:
    notes = []
    for _ in range(3):
        notes.append(grow().note)
        (told,) = push()
        assert told.good, told.words
    assert [shown(repository, f"main~{back}") for back in (2, 1, 0)] == notes
    assert audit.public_keys()[0][0] in shown(repository, file="keys.json")
    assert LogPush.objects.get(target="git").size == 4
    assert "lies there" in push()[0].words


def test_a_history_that_was_rewritten_is_not_pushed(repository: Path) -> None:
    grow(3)
    push()
    before = shown(repository)
    as_owner(
        "DELETE FROM audit_logcheckpoint",
        "DELETE FROM audit_auditleaf",
        "DELETE FROM audit_treehead",
        "UPDATE audit_auditentry SET subject = 'thing:100' WHERE subject = 'thing:1'",
        "INSERT INTO audit_auditpending (entry_id) SELECT id FROM audit_auditentry ORDER BY id DESC",
        "DELETE FROM audit_auditentry WHERE subject = 'thing:100'",
        "DELETE FROM audit_auditpending WHERE entry_id NOT IN (SELECT id FROM audit_auditentry)",
    )
    grow(3)
    (told,) = push()
    assert (told.good, "another history" in told.words) == (False, True)
    assert shown(repository) == before


def test_a_repository_that_is_not_there_is_told_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environment(), "log_git", str(tmp_path / "nowhere.git"))
    grow()
    push_task()
    row = LogPush.objects.get(target="git")
    assert (row.size, row.pushed_at, "nowhere.git" in row.error) == (None, None, True)
    monkeypatch.setattr(environment(), "log_git", f"--upload-pack=touch {tmp_path / 'owned'}")
    assert not push()[0].good
    assert not (tmp_path / "owned").exists(), "an address that reads as an option is none"


def test_a_push_that_hangs_is_ended_with_what_it_started(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = tmp_path / "pid"
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\necho $$ > {told}\nexec sleep 600\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(ssh))
    monkeypatch.setattr(environment(), "log_git", "ssh://log.example/log.git")
    asked = iter(("the deadline", "git init", "git remote add"))

    def clock() -> float:
        """The time is over once git has come to ssh, however long a busy machine needs for that."""
        if next(asked, None) is None:
            wait_for(lambda: told.exists() and told.read_text(), "git has come to ssh")
            return float(git_push.SECONDS)
        return 0.0

    monkeypatch.setattr(git_push, "time", SimpleNamespace(monotonic=clock))
    grow()
    assert "120 s, and was ended at git ls-remote" in push()[0].words
    hung = Path(f"/proc/{told.read_text().strip()}/stat")

    def ended() -> bool:
        try:
            return hung.read_text().split()[2] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    wait_for(ended, "the ssh that hung is ended")


def test_a_folder_or_odd_bytes_in_the_place_of_the_checkpoint_are_told(repository: Path, tmp_path: Path) -> None:
    grow()
    work = tmp_path / "work"

    def git(*words: str) -> None:
        who = ["-c", "user.name=m", "-c", "user.email=m@localhost"]
        subprocess.run(["git", "-C", str(work), *who, *words], check=True, capture_output=True)

    def pushed() -> str:
        git("add", "--all")
        git("commit", "--message", "changed")
        git("push", "origin", "main")
        return push()[0].words

    subprocess.run(["git", "clone", "--quiet", str(repository), str(work)], check=True, capture_output=True)
    git("checkout", "-b", "main")
    (work / "checkpoint").write_bytes(b"\xff\xfe\n")
    assert "is not of this log" in pushed()
    (work / "checkpoint").unlink()
    (work / "checkpoint").mkdir()
    (work / "checkpoint" / "file").write_text("x")
    assert "a folder named checkpoint" in pushed()
    assert LogPush.objects.get(target="git").failed_at is not None


# ---------------------------------------------------------------------- witness


MOMENT = 1_795_000_000
"""At which the witness signs."""


class Witness:
    """A witness as c2sp.org/tlog-witness has it, for one log."""

    def __init__(self, log_vkeys: Callable[[], list[str]]) -> None:
        self.private = Ed25519PrivateKey.generate()
        self.name = "witness.example/w1"
        public = self.private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.key_id = hashlib.sha256(self.name.encode() + b"\n\x04" + public).digest()[:4]
        self.vkey = f"{self.name}+{self.key_id.hex()}+{base64.b64encode(bytes([4]) + public).decode()}"
        self.log_vkeys = log_vkeys
        self.seen: Checkpoint | None = None
        self.asked: list[int] = []
        self.spoil = False

    def answer(self, body: str) -> tuple[int, str, str]:
        """Status, content type, body."""
        head, _, note = body.partition("\n\n")
        old, *proof = head.split("\n")
        size = int(old.removeprefix("old "))
        self.asked.append(size)
        keys = [parse_vkey(vkey) for vkey in self.log_vkeys()]
        if note.split("\n")[0] not in {key.name for key in keys}:
            return 404, "text/plain", "no such log\n"
        try:
            text = open_note(note, keys).text
        except NoteError as error:
            return 403, "text/plain", f"{error}\n"
        now = parse(text)
        if size > now.size:
            return 400, "text/plain", "old is larger\n"
        last = self.seen.size if self.seen else 0
        if size != last:
            return 409, "text/x.tlog.size", f"{last}\n"
        path = [base64.b64decode(line) for line in proof]
        if self.seen and not verify_consistency(size, now.size, path, self.seen.root, now.root):
            return 422, "text/plain", "the proof does not hold\n"
        if not self.seen and path:
            return 422, "text/plain", "a proof from nothing is empty\n"
        self.seen = now
        signature = self.private.sign(f"cosignature/v1\ntime {MOMENT}\n{text}".encode())
        if self.spoil:
            signature = bytes(64)
        packed = base64.b64encode(self.key_id + MOMENT.to_bytes(8) + signature).decode()
        return 200, "text/plain", f"— other.example {base64.b64encode(b'x' * 76).decode()}\n— {self.name} {packed}\n"


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Iterator[Witness]:
    """One that listens, knows this log's keys, and is configured."""
    made = Witness(lambda: made_keys)
    made_keys: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/w/add-checkpoint"
            status, kind, body = made.answer(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            """Nothing on the tests' output."""

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setattr(environment(), "log_witness", f"http://127.0.0.1:{server.server_port}/w/")
        monkeypatch.setattr(environment(), "log_witness_key", made.vkey)
        made_keys += [audit.signing_key().vkey]
        yield made
        server.shutdown()
        thread.join()


def test_the_witness_cosigns_each_checkpoint_after_the_one_it_saw(witness: Witness) -> None:
    sizes = []
    for by in (1, 4, 9):
        row = grow(by)
        sizes.append(row.size)
        (told,) = push()
        assert told.good, told.words
        cosignature = LogCosignature.objects.get(checkpoint=row)
        assert cosignature.line.startswith(f"— {witness.name} ")
        assert cosignature.at.timestamp() == MOMENT
    assert witness.asked == [0, *sizes[:-1]], "each from the size of the one before"
    assert any("3 cosignatures" in line for line in check())
    assert "has been cosigned" in push()[0].words
    assert len(witness.asked) == 3, "nobody is asked again for what is there"


def test_a_witness_that_knows_more_than_we_remember_is_asked_from_there(witness: Witness) -> None:
    grow(2)
    push()
    as_owner("DELETE FROM audit_logcosignature")
    row = grow(3)
    (told,) = push()
    assert told.good, told.words
    assert witness.asked == [0, 0, 3]
    assert LogCosignature.objects.get().checkpoint == row


@pytest.mark.parametrize(
    ("size", "said"), [(8, "holds another history"), (2, "422: the proof that")], ids=["longer", "another"]
)
def test_a_witness_that_saw_another_history_does_not_cosign(witness: Witness, size: int, said: str) -> None:
    assert grow(2).size == 3
    witness.seen = Checkpoint(audit.signing_key().name, size, bytes(32))
    (told,) = push()
    assert (told.good, said in told.words) == (False, True)
    assert not LogCosignature.objects.exists()


def test_a_cosignature_that_does_not_fit_is_not_kept(witness: Witness) -> None:
    grow(2)
    witness.spoil = True
    assert "without a cosignature of witness.example/w1" in push()[0].words
    assert not LogCosignature.objects.exists()


@pytest.mark.parametrize(("name", "status"), [("other.example", "404"), ("test.example/log", "403")])
def test_a_witness_that_does_not_know_us_says_so(witness: Witness, name: str, status: str) -> None:
    stranger = generate(name).vkey
    witness.log_vkeys = lambda: [stranger]
    grow()
    assert f"{status}: it " in push()[0].words
    assert LogPush.objects.get(target="witness").failed_at is not None


def test_a_witness_that_is_away_or_has_no_key_stops_nothing(witness: Witness, monkeypatch: pytest.MonkeyPatch) -> None:
    grow()
    for address in ("http://127.0.0.1:9/", "http://wit ness.example/"):
        monkeypatch.setattr(environment(), "log_witness", address)
        assert "cannot be reached" in push()[0].words
    monkeypatch.setattr(environment(), "log_witness_key", "")
    assert "COHORT_LOG_WITNESS_KEY" in push()[0].words
    monkeypatch.setattr(environment(), "log_witness_key", generate("w").vkey)
    assert "is no Ed25519 key of a witness" in push()[0].words
    push_task()


def test_on_schedule_only_what_is_new_is_handed_on(witness: Witness, repository: Path) -> None:
    push_task()
    assert not LogPush.objects.exists(), "there is no checkpoint yet"
    grow()
    push_task()
    assert {row.target for row in LogPush.objects.filter(size=2, error="")} == {"git", "witness"}
    repository.rename(repository.with_name("away"))
    push_task()
    assert not LogPush.objects.filter(failed_at__isnull=False).exists(), "nothing was new, so nothing was tried"
    grow()
    push_task()
    assert LogPush.objects.get(target="git").failed_at is not None
    assert LogPush.objects.get(target="witness").size == 3, "the other goes its own way"


def test_a_stored_cosignature_that_was_changed_is_named(witness: Witness) -> None:
    grow()
    push()
    as_owner("UPDATE audit_logcosignature SET at = at + interval '1 day'")
    with pytest.raises(LogFault, match="does not fit its checkpoint"):
        check()
