"""The newest checkpoint handed to those outside: a real git repository, and a real witness over HTTP that checks
consistency before it cosigns. Who answers a byte at a time holds no push: one deadline ends all of it."""

import base64
import json
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from cohort.audit import git_push
from cohort.audit import services as audit
from cohort.audit import witness as witness_module
from cohort.audit.check import check
from cohort.audit.models import LogCheckpoint, LogCosignature, LogPush
from cohort.audit.push import PushOutcome, push
from cohort.audit.tree import LogFault
from cohort.audit.witness import WitnessFault, cosigned
from cohort.background.tasks import push_audit_log as push_task
from cohort.base.environment import environment
from cohort.evidence.canonical import canonical
from cohort.evidence.checkpoint import Checkpoint
from cohort.evidence.cosignature import WitnessKey
from cohort.evidence.keys import generate
from cohort.evidence.status import FILE
from cohort.evidence.verify import main
from cohort.records.cards.download import write_download
from cohort.records.models import Record
from cohort.records.status.services import status_issue
from tests.factories.small_cards import packed
from tests.processes import wait_for
from tests.web.records.test_audit_check import as_owner
from tests.web.records.witness_server import DRIPS, MOMENT, NOTE, OK, OTHER_SIZE, VKEY, Witness, dripping, serving

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
    words = ["git", "-C", str(repository), "show", f"{revision}:{file}"]
    return subprocess.run(words, capture_output=True, check=True, text=True).stdout


def pushed() -> PushOutcome:
    """What came of the push to the one target that is configured."""
    (outcome,) = push()
    return outcome


def test_each_checkpoint_is_a_commit_on_the_one_before(repository: Path) -> None:
    notes = []
    for _ in range(3):
        notes.append(grow().note)
        assert pushed().good
    assert [shown(repository, f"main~{back}") for back in (2, 1, 0)] == notes
    assert audit.public_keys()[0][0] in shown(repository, file="keys.json")
    assert LogPush.objects.get(target="git").size == 4
    assert "lies there" in pushed().words


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
    outcome = pushed()
    assert (outcome.good, "another history" in outcome.words) == (False, True)
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
    assert not pushed().good
    assert not (tmp_path / "owned").exists(), "an address that reads as an option is none"


def test_a_push_that_hangs_is_ended_with_what_it_started(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One deadline is for all commands of a push: the clock is asked once, and then by each."""
    pid, ssh = tmp_path / "pid", tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\necho $$ > {pid}\nexec sleep 600\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(ssh))
    monkeypatch.setattr(environment(), "log_git", "ssh://log.example/log.git")
    calls = iter(("the deadline", "git init", "git remote add"))

    def clock() -> float:
        """The time is over once git has come to ssh, however long a busy machine needs for that."""
        if next(calls, None) is None:
            wait_for(lambda: pid.exists() and pid.read_text(), "git has come to ssh")
            return float(git_push.SECONDS)
        return 0.0

    monkeypatch.setattr(git_push, "time", SimpleNamespace(monotonic=clock))
    grow()
    assert "120 s, and was ended at git ls-remote" in pushed().words

    def ended() -> bool:
        try:
            return psutil.Process(int(pid.read_text())).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    wait_for(ended, "the ssh that hung is ended")


def test_a_folder_or_odd_bytes_in_the_place_of_the_checkpoint_are_told(repository: Path, tmp_path: Path) -> None:
    grow()
    work = tmp_path / "work"

    def git(*words: str) -> None:
        who = ["-c", "user.name=m", "-c", "user.email=m@localhost"]
        subprocess.run(["git", "-C", str(work), *who, *words], check=True, capture_output=True)

    def after_commit() -> str:
        git("add", "--all")
        git("commit", "--message", "changed")
        git("push", "origin", "main")
        return pushed().words

    subprocess.run(["git", "clone", "--quiet", str(repository), str(work)], check=True, capture_output=True)
    git("checkout", "-b", "main")
    (work / "checkpoint").write_bytes(b"\xff\xfe\n")
    assert "is not of this log" in after_commit()
    (work / "checkpoint").unlink()
    (work / "checkpoint").mkdir()
    (work / "checkpoint" / "file").write_text("x")
    assert "a folder named checkpoint" in after_commit()
    assert LogPush.objects.get(target="git").failed_at is not None


# ---------------------------------------------------------------------- witness


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Iterator[Witness]:
    """One that listens, knows this log's keys, and is configured."""
    vkeys = [audit.signing_key().vkey]
    made = Witness(lambda: vkeys)

    def answer(body: bytes) -> tuple[bytes, bytes]:
        status, kind, text = made.answer(body.decode())
        return f"HTTP/1.0 {status} X\r\nContent-Type: {kind}\r\n\r\n{text}".encode(), b""

    with serving(answer) as url:
        monkeypatch.setattr(environment(), "log_witness", f"{url}/w/")
        monkeypatch.setattr(environment(), "log_witness_key", made.vkey)
        yield made


def test_the_witness_cosigns_each_checkpoint_after_the_one_it_saw(witness: Witness) -> None:
    sizes = []
    for by in (1, 4, 9):
        row = grow(by)
        sizes.append(row.size)
        assert pushed().good
        cosignature = LogCosignature.objects.get(checkpoint=row)
        assert cosignature.line.startswith(f"— {witness.name} ")
        assert cosignature.at.timestamp() == MOMENT
    assert witness.sizes == [0, *sizes[:-1]], "each from the size of the one before"
    assert any("3 cosignatures" in line for line in check())
    assert "has been cosigned" in pushed().words
    assert len(witness.sizes) == 3, "nobody is asked again for what is there"
    as_owner("UPDATE audit_logcosignature SET at = at + interval '1 day'")
    with pytest.raises(LogFault, match="does not fit its checkpoint"):
        check()
    as_owner("DELETE FROM audit_logcosignature")
    row = grow(3)
    assert pushed().good
    assert witness.sizes[3:] == [0, sizes[-1]], "a witness that knows more than we remember is asked from there"
    assert LogCosignature.objects.get().checkpoint == row


def test_a_status_carries_the_witness_s_signature_and_verify_checks_it(
    witness: Witness, sealed: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also in the name of a witness that did not sign, and of one that is not known."""
    card, keys = tmp_path / "card.zip", tmp_path / "keys.json"
    keys.write_bytes(canonical(audit.keys_file()))

    def verify(*options: str) -> tuple[int, str]:
        status = main([str(card), f"--key={keys}", "--offline", *options])
        return status, capsys.readouterr().out

    status_issue(record=sealed)
    write_download(sealed.card("public"), card)
    assert verify(f"--witness={witness.vkey}")[1].count(f"not cosigned by the witness {witness.name}") == 2
    grow(3)
    assert pushed().good
    write_download(sealed.card("public"), card)
    status, shown = verify(f"--witness={witness.vkey}")
    assert (status, f"cosigned by the witness {witness.name} on " in shown.partition("status: ")[2]) == (0, True)
    assert f"signatures not checked: {witness.name}+" in verify()[1]
    name, key_id, key = witness.vkey.split("+", 2)
    assert verify(f"--witness={name}+{key_id}+{key[:-2]}A=")[0] == 2, "no key"
    with zipfile.ZipFile(card) as archive:
        files = {each: archive.read(each) for each in archive.namelist()}
    parts = json.loads(files[FILE])
    proof, mark, signature = parts["proof"].rpartition(f"— {name} ")
    packed_line = bytearray(base64.b64decode(signature))
    packed_line[-1] ^= 1
    parts["proof"] = f"{proof}{mark}{base64.b64encode(packed_line).decode()}\n"
    card.write_bytes(packed({**files, FILE: canonical(parts)}))
    status, shown = verify(f"--witness={witness.vkey}")
    assert (status, "does not fit the checkpoint" in shown) == (1, True)


@pytest.mark.parametrize(
    ("size", "words"), [(8, "holds another history"), (2, "422: the proof that")], ids=["longer", "another"]
)
def test_a_witness_that_saw_another_history_does_not_cosign(witness: Witness, size: int, words: str) -> None:
    assert grow(2).size == 3
    witness.seen = Checkpoint(audit.signing_key().name, size, bytes(32))
    outcome = pushed()
    assert (outcome.good, words in outcome.words) == (False, True)
    assert not LogCosignature.objects.exists()


@pytest.mark.parametrize(("name", "status"), [("other.example", "404"), ("test.example/log", "403")])
def test_a_witness_that_does_not_know_us_says_so(witness: Witness, name: str, status: str) -> None:
    stranger = generate(name).vkey
    witness.log_vkeys = lambda: [stranger]
    grow()
    assert f"{status}: it " in pushed().words
    assert LogPush.objects.get(target="witness").failed_at is not None


def test_a_witness_that_is_away_or_signs_or_is_named_wrongly_stops_nothing(
    witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow()
    witness.spoil = True
    assert "without a cosignature of witness.example/w1" in pushed().words
    assert not LogCosignature.objects.exists()
    for address in ("http://127.0.0.1:9/", "http://wit ness.example/"):
        monkeypatch.setattr(environment(), "log_witness", address)
        assert "cannot be reached" in pushed().words
    for key, words in (("", "COHORT_LOG_WITNESS_KEY"), (generate("w").vkey, "is no Ed25519 key of a witness")):
        monkeypatch.setattr(environment(), "log_witness_key", key)
        assert words in pushed().words
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


# ---------------------------------------------------------------------- deadlines


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


@pytest.mark.slow
def test_both_requests_have_one_deadline_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first takes 58 s by the clock and the second 3.6 s; each is within 60 s, and both are not."""
    clock = iter([0.0, 58.0])
    first = (OTHER_SIZE[:-6], OTHER_SIZE[-6:] + b"5\n")
    second = (OK[:-36], OK[-36:])
    with dripping(first, second) as (url, bodies), monkeypatch.context() as patch:
        patch.setattr(witness_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        with pytest.raises(WitnessFault, match=r"took longer than 60 s for its whole answer"):
            ask(url, 60)
        # On a slow machine the second is ended before its request is made.
        assert [body.split(b"\n")[0] for body in bodies] in ([b"old 0", b"old 5"], [b"old 0"])
        assert next(clock, None) is None
    with dripping(second) as (url, _), pytest.raises(WitnessFault, match="without a cosignature"):
        ask(url, 60)  # by itself it is no fault of time


def test_a_push_goes_on_to_the_others_and_tells(monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    monkeypatch.setattr(witness_module, "SECONDS", 1)
    monkeypatch.setattr(environment(), "log_witness_key", VKEY)
    grow()
    with dripping((OK, b"x" * DRIPS)) as (url, _):
        monkeypatch.setattr(environment(), "log_witness", url)
        good = {outcome.target: outcome.good for outcome in push()}
    assert good == {"git": True, "witness": False}
    assert "took longer than 1 s" in LogPush.objects.get(target="witness").error
