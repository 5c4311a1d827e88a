"""What a dishonest hand can do to a card and its status on their way, a case each: the command's exit status, and the
words of its first lines, which are all that most people read."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cohort.evidence import status
from cohort.evidence.canonical import canonical
from cohort.evidence.verify import command, main
from cohort.evidence.verify.life import NoAnswer
from tests.factories.small_cards import HEAD, Log, Sealed, card, key, packed, reissued, signed_by
from tests.factories.statuses import NOW, bundled, document, downloaded, handed_out, resigned

FIRST_LINES = 4
LAST_DAY = datetime(9999, 12, 1, tzinfo=UTC)
Files = dict[str, bytes]


class Scene:
    """A platform's log with a card of it, and what a forger starts from."""

    def __init__(self) -> None:
        self.log = Log(notes=3)
        self.older = card(self.log)
        self.good = downloaded(self.log, self.older)
        self.record: dict[str, Any] = json.loads(self.older["record.json"])

    def status(self, state: str = "signed off", **when: Any) -> bytes:
        return bundled(self.log, self.older, document(self.record, self.log, state, **when))

    def changed(self, **said: Any) -> Files:
        """The status's words changed in the zip; its signature as it was."""
        parts = json.loads(self.good[status.FILE])
        parts["status"] |= said
        return handed_out(self.older, canonical(parts))

    def without(self, *names: str) -> Files:
        return {name: content for name, content in self.good.items() if name not in names}

    def of_another(self) -> Files:
        other = card(self.log, Sealed(head={**HEAD, "run": 8}))
        said = document(json.loads(other["record.json"]), self.log)
        return handed_out(self.older, bundled(self.log, self.older, said))

    def of_a_twin(self) -> Files:
        twin = Log("forger", notes=3)
        return handed_out(self.older, bundled(twin, self.older, document(self.record, twin)))

    def in_the_log_s_name(self, swapped: bool) -> Files:
        """Content changed, and all made right again with another's key; or with the platform's key in keys.json."""
        forger = Log("forger", notes=3)
        listed = self.older["keys.json"] if swapped else canonical(forger.keys_file())
        change = {"CARD.md": b"# safe\n", "keys.json": listed} | ({} if swapped else signed_by(forger))
        made = reissued(forger, self.older, lambda inside: inside.update(change))
        return made if swapped else downloaded(forger, made)

    def swapped_key(self) -> Files:
        return {**self.good, "keys.json": canonical(Log("forger").keys_file())}

    def unsigned(self) -> Files:
        envelope = json.loads(self.good["attestation.dsse.json"])
        return {**self.good, "attestation.dsse.json": canonical({**envelope, "signatures": []})}

    def page_that_praises(self) -> Files:
        return {**self.good, status.PAGE: b"<p>Signed off by both.</p>"}

    def by_another_key(self) -> Files:
        return handed_out(self.older, canonical(resigned(self.good[status.FILE], key("forger"))))


CASES: dict[str, tuple[Callable[[Scene], Files], int, str]] = {
    "nothing": (lambda scene: scene.good, 0, "Signed off by both"),
    "another's key over changed content": (lambda s: s.in_the_log_s_name(False), 1, "none of the keys that this log"),
    "content changed under the platform's keys.json": (lambda s: s.in_the_log_s_name(True), 1, "is signed by the key"),
    "public key swapped": (Scene.swapped_key, 1, "none of the keys that this log"),
    "signature dropped": (Scene.unsigned, 1, "attestation: attestation.dsse.json: is no envelope"),
    "status withheld": (lambda s: s.older, 6, "whether the record was revoked or superseded since it was sealed"),
    "a file of the status withheld": (lambda s: s.without(status.PAGE), 1, "STATUS.html is missing"),
    "status of another record": (Scene.of_another, 1, "is the status of another record"),
    "status changed": (
        lambda s: s.changed(state={"name": "signed off", "words": "Approved for everything."}),
        1,
        "status.json: was changed after it was signed",
    ),
    "validity extended": (
        lambda s: s.changed(valid_until=status.written(NOW + timedelta(days=80))),
        1,
        "status.json: was changed after it was signed",
    ),
    "valid for years, by who holds the key": (
        lambda s: handed_out(s.older, s.status(days=900)),
        1,
        "90 days at most are taken",
    ),
    "valid from the end of time, by who holds the key": (
        lambda s: handed_out(s.older, s.status(issued=LAST_DAY, days=20)),
        6,
        "before this status was issued: set the clock",
    ),
    "sealed at no moment, by another": (
        lambda s: downloaded(s.log, card(s.log, Sealed(head={**HEAD, "sealed_at": "2026-13-99T10:00:00Z"}))),
        1,
        "which is no moment",
    ),
    "status cut short": (
        lambda s: handed_out(s.older, s.good[status.FILE][:-40]),
        1,
        "status.json: is not as it was written: not JSON",
    ),
    "status by another log of the same name": (Scene.of_a_twin, 1, "is not by the keys of the card"),
    "page of the status changed": (Scene.page_that_praises, 1, "STATUS.html: was changed after it was signed"),
    "status by another key": (Scene.by_another_key, 1, "which is not known here"),
    "no status at all in status.json": (lambda s: handed_out(s.older, b"{}"), 1, "is no status as cohort-status/1"),
    "ended": (
        lambda s: handed_out(s.older, s.status(issued=NOW - timedelta(days=31))),
        6,
        "the newest status that is known ended on",
    ),
    "ended, and revoked": (
        lambda s: handed_out(s.older, s.status("revoked", issued=NOW - timedelta(days=31))),
        4,
        "Revoked on 2026-11-25",
    ),
    "issued in the future": (
        lambda s: handed_out(s.older, s.status(issued=NOW + timedelta(hours=2))),
        6,
        "before this status was issued: set the clock",
    ),
    "revoked": (lambda s: handed_out(s.older, s.status("revoked")), 4, "Revoked on 2026-11-25: do not rely on"),
    "revoked, and why": (
        lambda s: handed_out(s.older, s.status("revoked")),
        4,
        "the reason given: The reward paid for wrong answers.",
    ),
    "superseded": (lambda s: handed_out(s.older, s.status("superseded")), 5, "Superseded by version 2"),
    "rejected": (lambda s: handed_out(s.older, s.status("rejected")), 7, "Rejected by the reviewer"),
}


def run(files: Files, scene: Scene, folder: Path, *options: str) -> int:
    (folder / "card.zip").write_bytes(packed(files))
    (folder / "keys.json").write_bytes(canonical(scene.log.keys_file()))
    return main([str(folder / "card.zip"), "--key", str(folder / "keys.json"), *options])


def first_lines(capsys: pytest.CaptureFixture[str]) -> str:
    return "\n".join(capsys.readouterr().out.splitlines()[:FIRST_LINES])


@pytest.mark.parametrize("case", CASES)
def test_a_forgery_is_named_in_the_first_lines(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forge, exit_status, words = CASES[case]
    scene = Scene()
    assert run(forge(scene), scene, tmp_path, "--offline") == exit_status
    assert words in first_lines(capsys)


def test_the_clock_turned_back_before_the_seal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A status that ended looks valid again."""

    class Clock:
        @staticmethod
        def now(_: object) -> Any:
            return NOW - timedelta(days=9999)

    monkeypatch.setattr(command, "datetime", Clock)
    scene = Scene()
    assert run(scene.good, scene, tmp_path, "--offline") == 6
    assert "before the record was sealed" in first_lines(capsys)


def test_an_older_card_in_place_of_a_newer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scene = Scene()
    newer = downloaded(scene.log, card(scene.log, Sealed(head={**HEAD, "version": 2})))
    (tmp_path / "newer.zip").write_bytes(packed(newer))
    assert run(scene.good, scene, tmp_path, "--offline", f"--against={tmp_path / 'newer.zip'}") == 2
    shown = capsys.readouterr().out
    assert "it is of a later log" in shown
    assert "the other card holds a later version of this run's record: end 1, version 2" in shown


def test_an_older_status_next_to_a_newer_zip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scene = Scene()
    (tmp_path / "newer.zip").write_bytes(packed(handed_out(scene.older, scene.status("revoked"))))
    assert run(scene.good, scene, tmp_path, "--offline") == 0
    capsys.readouterr()
    assert run(scene.good, scene, tmp_path, "--offline", f"--against={tmp_path / 'newer.zip'}") == 4
    shown = capsys.readouterr().out
    assert "Revoked on" in "\n".join(shown.splitlines()[:FIRST_LINES])
    assert "the status in the zip is an older one: entry" in shown


ANSWERS: dict[str, tuple[Callable[[Scene], bytes], int, str]] = {
    "the same state, newer": (lambda s: s.status(), 0, "asked http://127.0.0.1:9 for the status of this seal"),
    "revoked since": (lambda s: s.status("revoked"), 4, "the platform's is entry"),
    "superseded since": (lambda s: s.status("superseded"), 5, "the zip's said: Signed off by both"),
    "by another key": (
        lambda s: canonical(resigned(s.status("revoked"), key("forger"))),
        0,
        "is not believed: status.json its envelope is signed by the key",
    ),
    "a page of a hotel": (lambda _: b"<html>sign in</html>", 0, "whose answer is not believed"),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_platform_s_answer_counts_when_it_is_its_own(
    answer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    give, exit_status, words = ANSWERS[answer]
    scene, asked = Scene(), []
    content = give(scene)

    def fetch(address: str, seal: str) -> bytes:
        asked.append((address, seal))
        return content

    monkeypatch.setattr(command, "fetch_status", fetch)
    assert run(scene.good, scene, tmp_path) == exit_status
    assert words in capsys.readouterr().out
    assert asked == [("http://127.0.0.1:9", scene.record["seal"])]
    asked.clear()
    forged = scene.in_the_log_s_name(False)
    (tmp_path / "forged.zip").write_bytes(packed(forged))
    assert main([str(tmp_path / "forged.zip")]) == 3
    assert asked == [], "the address in a card of an unknown signer is a stranger's"


def test_a_platform_that_does_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: str) -> bytes:
        raise NoAnswer("it cannot be reached: Connection refused")

    monkeypatch.setattr(command, "fetch_status", refuse)
    scene = Scene()
    assert run(scene.good, scene, tmp_path) == 0
    shown = capsys.readouterr().out
    assert "without an answer of the platform" in "\n".join(shown.splitlines()[:FIRST_LINES])
    assert "which gave no status: it cannot be reached" in shown
    assert run(scene.older, scene, tmp_path) == 6
