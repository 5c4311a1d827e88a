"""`cohort verify`: accepts a card as it was issued, says what it checked and what that does not prove, and rejects a
record whose holder of key and database wrote other numbers into it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cohort.evidence import dsse
from cohort.evidence.canonical import canonical, sha256
from cohort.evidence.record import AUDIENCES
from cohort.evidence.verify import main
from cohort.evidence.verify.check import Beside
from cohort.evidence.verify.report import Report
from cohort.paths import PACKAGE
from tests.web.governance import card_made
from tests.web.governance.card_made import Log, Sealed, card, cards, check, faults, key, packed

CHECKS = [
    "layout", "record.json", "record root", "seal", "sealed files", "key", "attestation", "log entry", "inclusion",
    "checkpoint", "earlier sizes", "completions", "config", "steps", "statistics", "completeness",
]  # fmt: skip


@pytest.fixture
def log() -> Log:
    made = Log()
    for number in range(4):
        made.note(str(number))
    made.sizes = [3, 4]
    return made


@pytest.fixture
def path(log: Log, tmp_path: Path) -> Path:
    out = tmp_path / "card.zip"
    out.write_bytes(packed(card(log)))
    return out


def by_name(report: Report) -> dict[str, str]:
    return {one.name: one.detail for one in report.checks}


# ---------------------------------------------------------------------- a good card


def test_the_card_of_every_audience_is_accepted(log: Log) -> None:
    made = cards(log)
    seals = set()
    for audience in AUDIENCES:
        report = check(made[audience])
        assert faults(report) == {}
        assert (report.accepted, report.exit_status) == (True, 0)
        assert [one.name for one in report.checks] == CHECKS
        seals.add(report.seal)
    assert len(seals) == 1
    public, internal = by_name(check(made["public"])), by_name(check(made["internal"]))
    assert (
        "withheld from this audience: 4 files (config.yaml, events.jsonl, manifest.json, metrics.jsonl)"
        in public["sealed files"]
    )
    assert "3 fields by hash alone, withheld" in public["record root"]
    assert "withheld" not in internal["sealed files"] + internal["record root"]
    assert public["config"] == "config.yaml is withheld from this audience"


def test_what_each_check_says(log: Log) -> None:
    found = by_name(check(card(log)))
    assert found["statistics"] == (
        "heldout: 30.0 % before, 70.0 % after of 10 problems, +40.0 points [−5.5, +72.2]: undecided at margin 5; "
        "recomputed from the items"
    )
    assert found["inclusion"] == f"entry 4 of 5 in the log {card_made.ORIGIN}"
    assert found["steps"] == "steps 1 to 3 in metrics.jsonl, as the record says"
    assert "16 completions have the root that the log names" in found["completions"]
    assert "5 completions shown as committed to; 1 redacted since" in found["completions"]
    assert "it also names 1 file of the final weights" in found["attestation"]
    assert found["completeness"].startswith("4 of 7")
    assert "1 can be checked with an older card only" in found["earlier sizes"]


def test_it_prints_what_it_checked_and_what_that_does_not_prove(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(path)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("not proven: ") == len(CHECKS)
    assert "accepted: the card is as it was issued" in printed
    assert "Who holds that key: it comes out of the card itself" in printed
    assert "No card proves:" in printed
    assert "compliant" not in printed


def test_json_report(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["accepted"], report["exit_status"], len(report["seal"])) == (True, 0, 64)
    assert [one["name"] for one in report["checks"]] == CHECKS
    assert all(one["does_not_prove"] for one in report["checks"])


def test_it_needs_neither_django_nor_network(path: Path) -> None:
    code = (
        "import sys, socket\n"
        "def refuse(*a, **k): raise AssertionError('network')\n"
        "socket.socket.connect = refuse\n"
        "from cohort.evidence.verify import main\n"
        "status = main([sys.argv[1]])\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'django', 'pydantic', 'torch', 'psycopg', 'celery', 'numpy'}, loaded\n"
        "sys.exit(status)\n"
    )
    environment = {"PYTHONPATH": f"{PACKAGE.parent}:{PACKAGE.parent.parent}", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "accepted" in done.stdout


# ---------------------------------------------------------------------- keys


def test_with_the_platforms_key(log: Log, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vkey = log.keys[0].vkey
    file = tmp_path / "platform.pub"
    file.write_text(f"{vkey}\n")
    for given in (vkey, str(file)):
        assert main([str(path), "--key", given]) == 0
        printed = capsys.readouterr().out
        assert f"the key that you gave: {vkey}" in printed
        assert "it comes out of the card itself" not in printed


def test_with_another_key_it_is_rejected(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(path), "--key", key("somebody else").vkey]) == 1
    assert "is not one of this card's" in capsys.readouterr().out


def test_a_key_that_cannot_be_read_is_2(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("hello")
    for given in ("cohort.example/log", str(tmp_path / "none.pub"), "a+00000000+AAAA", str(tmp_path / "text"), ""):
        assert main([str(path), "--key", given]) == 2
        assert "public key" in capsys.readouterr().err


def test_a_replaced_key_is_followed_from_the_one_given(log: Log) -> None:
    first = log.keys[0].public_key
    log.rotate("second")
    log.rotate("third")
    made = card(log)
    found = by_name(check(made, Beside(key=first)))
    assert "2 statements lead to from the key that you gave" in found["key"]
    assert "replaced 2 times so far" in by_name(check(made))["key"]
    assert check(made, Beside(key=log.keys[1].public_key)).accepted
    assert check(made, Beside(key=log.keys[2].public_key)).accepted
    # the statement that leads to the third key is missing, or is one that the first key made
    chain = json.loads(made["keys.json"])
    for rotations in (chain["rotations"][:1], chain["rotations"][:1] * 2, []):
        changed = {**made, "keys.json": canonical({**chain, "rotations": rotations})}
        assert "key" in faults(check(changed))


def test_a_card_signed_by_a_key_before_the_one_given(log: Log) -> None:
    made = card(log)
    log.rotate("second")
    chain = {"origin": log.origin, "keys": [one.vkey for one in log.keys], "rotations": log.rotations}
    later = {**made, "keys.json": canonical(chain)}
    report = check(later, Beside(key=log.keys[1].public_key))
    assert report.exit_status == 1
    assert "which is not known here" in faults(report)["attestation"]
    assert "then give the key before it" in faults(check(made, Beside(key=log.keys[1].public_key)))["key"]


def test_who_has_a_key_that_was_replaced_makes_no_card_under_the_new_one(log: Log) -> None:
    """The statement that leads to the new key is public: a stolen old key must not sign in the new one's name."""
    log.rotate("second")
    stolen, newest = log.keys
    log.keys.append(stolen)  # what signs
    sealed = Sealed()
    sealed.seal()
    inside = card_made._inside(log, sealed, "internal")
    chain = {"origin": log.origin, "keys": [stolen.vkey, newest.vkey], "rotations": log.rotations}
    made = card_made.issue(log, {"internal": {**inside, "keys.json": canonical(chain)}})["internal"]
    for beside in (Beside(), Beside(key=stolen.public_key), Beside(key=newest.public_key)):
        found = faults(check(made, beside))
        assert "which is not known here" in found["attestation"]
        assert f"is not signed by {newest.vkey}" in found["checkpoint"]


def test_out_of_memory_is_2(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("cohort.evidence.verify.command.verify_card", full)
    assert main([str(path)]) == 2
    assert "needs more memory" in capsys.readouterr().err


# ---------------------------------------------------------------------- versions, and nothing to check


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cohort-record/3", "a newer release of cohort checks it"),
        ("cohort-record/1", "an older release of cohort checks it"),
    ],
)
def test_records_of_other_versions_are_2(log: Log, name: str, words: str) -> None:
    document = json.loads(card(log)["record.json"]) | {"schema": name}
    report = check({**card(log), "record.json": canonical(document)})
    assert report.exit_status == 2
    assert words in faults(report)["record.json"]


def test_a_card_of_the_first_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "first.zip").write_bytes(
        packed({"record.json": canonical({"schema": "cohort-record/1", "record": {}})})
    )
    assert main([str(tmp_path / "first.zip")]) == 2
    assert "cannot be checked" in capsys.readouterr().out


def test_nothing_to_check_is_2(tmp_path: Path, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.zip").write_text("hello")
    (tmp_path / "empty.zip").write_bytes(b"")
    for missing, words in (
        ([str(tmp_path / "none.zip")], "No such file"),
        ([str(tmp_path)], "Is a directory"),
        ([str(tmp_path / "text.zip")], "it is no zip file"),
        ([str(tmp_path / "empty.zip")], "it is no zip file"),
        ([str(path), "--against", str(tmp_path / "none.zip")], "No such file"),
        ([str(path), "--against", str(tmp_path / "text.zip")], "it is no zip file"),
        ([str(path), "--trace", str(tmp_path / "none.json")], "No such file"),
        ([str(path), "--trace", str(tmp_path / "text.zip")], "it is not JSON"),
    ):
        assert main(missing) == 2
        assert words in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("name", "check_name"),
    [("attestation.dsse.json", "attestation"), ("log-entry.json", "log entry"), ("proof.tlog-proof", "inclusion"),
     ("consistency.json", "earlier sizes")],
)  # fmt: skip
def test_a_missing_proof_is_2(log: Log, name: str, check_name: str) -> None:
    made = card(log)
    del made[name]
    report = check(made)
    assert report.exit_status == 2
    assert f"there is no {name}" in faults(report)[check_name]


def test_without_keys_nothing_can_be_checked_and_a_signed_file_is_missing(log: Log) -> None:
    made = card(log)
    del made["keys.json"]
    report = check(made)
    assert "there is no keys.json" in faults(report)["key"]
    assert report.exit_status == 2


# ---------------------------------------------------------------------- a forger with the platform's key


def forged(log: Log, *way: str | int, value: Any, audience: str = "internal") -> dict[str, str]:
    def change(document: dict[str, Any]) -> None:
        here: Any = document["sections"]
        for step in way[:-1]:
            here = here[step]
        here[way[-1]] = value

    return faults(check(card(log, Sealed(change=change), audience)))


@pytest.mark.parametrize(
    ("way", "value"),
    [
        (("after", "share"), 0.9),
        (("after", "correct"), 8.0),
        (("after", "interval", "low"), 0.5),
        (("change", "difference"), 0.41),
        (("change", "interval", "low"), 0.1),
        (("change", "p_mcnemar"), 0.01),
        (("change", "p_holm"), 0.01),
        (("change", "broken"), 0),
        (("change", "mde"), 0.01),
        (("non_inferiority",), "not_worse"),
        (("verdict",), "no change seen"),
        (("problems",), 11),
    ],
)
def test_every_headline_number_is_recomputed(log: Log, way: tuple[str, ...], value: Any) -> None:
    for audience in ("public", "internal"):
        found = forged(log, "behaviour", "performance", "value", 0, *way, value=value, audience=audience)
        assert set(found) == {"statistics"}
        assert f"heldout.{'.'.join(way)} is " in found["statistics"]


def test_the_margin_is_the_configs(log: Log) -> None:
    found = forged(log, "behaviour", "performance", "value", 0, "margin", value=0.2)
    assert "fixed the margin 0.05 for heldout" in found["config"]


def test_steps_reward_and_config_are_those_of_the_files(log: Log) -> None:
    assert set(forged(log, "budget", "steps", "value", value={"done": 4})) == {"steps"}
    assert set(forged(log, "reward", "course", "value", "last", value=2.0)) == {"steps"}
    assert set(forged(log, "method", "config", "value", value={"sha256": "0" * 64})) == {"config"}


def test_rows_dropped_doubled_or_changed(log: Log) -> None:
    rows = card_made.items(card_made.AFTER).splitlines(keepends=True)
    honest = Sealed().seal()["sections"]["behaviour"]["performance"]["value"]
    right = rows[-1].replace(b'"score":0', b'"score":1')
    for lines in (rows[:-1], rows[1:], [], [*rows[:-1], right]):

        def keep(document: dict[str, Any]) -> None:
            document["sections"]["behaviour"]["performance"]["value"] = honest

        files = card_made.data_files() | {"evals/after.jsonl": ("public", b"".join(lines))}
        assert set(faults(check(card(log, Sealed(files, change=keep))))) == {"statistics"}


def test_an_item_that_stands_twice(log: Log) -> None:
    def twice(files: dict[str, bytes]) -> None:
        files["evals/after.jsonl"] += files["evals/after.jsonl"].splitlines(keepends=True)[0]

    assert "evaluated twice" in faults(check(card_made.reissued(log, card(log), twice)))["statistics"]


def test_the_order_of_rows_does_not_change_the_numbers(log: Log) -> None:
    rows = card_made.items(card_made.AFTER).splitlines(keepends=True)
    files = card_made.data_files() | {"evals/after.jsonl": ("public", b"".join(rows[::-1]))}
    assert check(card(log, Sealed(files))).accepted
    # and without the key, the same rows in another order are another file
    made = card(log)
    assert (
        "evals/after.jsonl: changed"
        in faults(check({**made, "evals/after.jsonl": b"".join(rows[::-1])}))["sealed files"]
    )


def test_another_seal_than_the_log_names(log: Log) -> None:
    one, other = card(log), card(log, Sealed(head={**Sealed().head, "version": 2}))
    mixed = {**one, **{name: other[name] for name in ("log-entry.json", "proof.tlog-proof", "consistency.json")}}
    assert "is about another record" in faults(check(mixed))["log entry"]
    mixed = {**one, "attestation.dsse.json": other["attestation.dsse.json"]}
    found = faults(check(mixed))
    assert "is about the seal" in found["attestation"]
    assert "cannot be held against" in found["log entry"]


def test_an_attestation_that_was_never_logged(log: Log) -> None:
    """Who holds the key alone signs another CARD.md; the log's entry names the attestation that was issued."""
    made = card(log)
    statement = json.loads(dsse.parsed(made["attestation.dsse.json"]).payload)
    subjects = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]} | {"CARD.md": sha256(b"else")}
    payload = dsse.statement(subjects, dsse.PREDICATE_TYPE, statement["predicate"])
    signed = dsse.envelope(payload, dsse.PAYLOAD_TYPE, log.keys[0])
    report = check({**made, "CARD.md": b"else", "attestation.dsse.json": signed})
    assert report.exit_status == 1
    assert set(faults(report)) == {"log entry"}
    assert "names another attestation for the audience internal" in faults(report)["log entry"]


def test_an_attestation_of_another_audience(log: Log) -> None:
    made = cards(log)
    mixed = {**made["public"], "attestation.dsse.json": made["internal"]["attestation.dsse.json"]}
    assert "is about the audience 'internal', and the record says public" in faults(check(mixed))["attestation"]
