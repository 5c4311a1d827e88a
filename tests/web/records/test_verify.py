"""`cohort verify`: the report of a good card, the command, whose signatures count, parts of two cards in one, and
completions against the run's commitments. Forged cards are in the table of test_verify_forged.py."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cohort.audit.keyfile import own_public_key
from cohort.base.environment import environment
from cohort.base.paths import PACKAGE
from cohort.evidence import dsse
from cohort.evidence.canonical import canonical, sha256
from cohort.evidence.keys import KeyFault
from cohort.evidence.merkle import EMPTY_ROOT, root
from cohort.evidence.model_signing import key_note
from cohort.evidence.record import AUDIENCES
from cohort.evidence.samples import Commitments, SampleFault, sample_leaf, sample_proof
from cohort.evidence.verify import main
from cohort.evidence.verify.check import References
from cohort.evidence.verify.signed import log_keys
from grpo_core.records import commitments as trainer
from grpo_core.records import types as records
from tests.factories import small_cards
from tests.factories.small_cards import (
    OWN,
    WEIGHTS,
    Log,
    Sealed,
    bundle,
    card,
    cards,
    check,
    faults,
    group,
    key,
    known,
    packed,
    reissued,
    sample_content,
)
from tests.factories.statuses import downloaded

LONG_HEX = re.compile(r"\b[0-9a-f]{64}\b")
SINCE = re.compile(r"(?<=as of )\S+Z|(?<=valid until )[^;]+")


@pytest.fixture
def log() -> Log:
    return Log(notes=4, sizes=(3, 4))


@pytest.fixture
def path(log: Log, tmp_path: Path) -> Path:
    out = tmp_path / "card.zip"
    out.write_bytes(packed(downloaded(log, card(log))))
    return out


def line(report: Any, name: str) -> str:
    return str(next(one.detail for one in report.checks if one.name == name))


# ---------------------------------------------------------------------- a good card


def test_the_report_of_each_audiences_card(log: Log, golden: Callable[[str, Any], None]) -> None:
    reports = {audience: check(files) for audience, files in cards(log).items()}
    assert all(report.accepted for report in reports.values())
    assert len({report.seal for report in reports.values()}) == 1
    told = {audience: reports[audience].as_dict() for audience in AUDIENCES}
    golden("verify/reports.json", json.loads(LONG_HEX.sub("…", json.dumps(told))))


def test_the_command_prints_the_report(
    path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[[str, Any], None]
) -> None:
    known_key = ["--key", key("first").vkey]
    assert main([str(path), "--json", *known_key]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"], report["accepted"], report["exit_status"]) == ("accepted", True, 0)
    assert len(report["seal"]) == 64
    assert report["never_proven"]
    assert main([str(path), *known_key]) == 0
    shown = SINCE.sub("TIME", capsys.readouterr().out)
    golden("verify/printed.txt", LONG_HEX.sub("…", shown).replace(str(path), "card.zip"))


def test_it_needs_neither_django_nor_network(path: Path) -> None:
    code = (
        "import sys, socket\n"
        "def refuse(*a, **k): raise AssertionError('network')\n"
        "socket.socket.connect = refuse\n"
        "from cohort.evidence.verify import main\n"
        "status = main(sys.argv[1:])\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'django', 'pydantic', 'torch', 'psycopg', 'celery', 'numpy'}, loaded\n"
        "sys.exit(status)\n"
    )
    environment = {"PYTHONPATH": f"{PACKAGE.parent}:{PACKAGE.parent.parent}", "PATH": ""}
    words = [sys.executable, "-c", code, str(path), "--offline", "--key", key("first").vkey]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_nothing_to_check_is_2(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    none, text, empty = (tmp_path / name for name in ("none", "text", "empty"))
    text.write_text("hello")
    empty.write_bytes(b"")
    for given in (none, tmp_path, text, empty):
        assert main([str(given)]) == 2
        assert ("Give the zip as it was downloaded" in capsys.readouterr().err) == (given != none)
    for option in ("--against", "--trace", "--key"):
        for given in (none, text):
            assert main([str(path), option, str(given)]) == 2
    zeros = tmp_path / "zeros"
    zeros.write_bytes(bytes(2**20))
    capsys.readouterr()
    for key_given in ("cohort.example/log", "a+00000000+AAAA", "", str(zeros)):
        assert main([str(path), "--key", key_given]) == 2
        assert len(capsys.readouterr().err) < 600

    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("cohort.evidence.verify.command.verify_card", full)
    assert main([str(path)]) == 2
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2


# ---------------------------------------------------------------------- keys


def test_with_the_platforms_key(log: Log, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vkey = log.keys[0].vkey
    file = tmp_path / "platform.pub"
    file.write_text(f"{vkey}\n")
    for given in (vkey, str(file)):
        assert main([str(path), "--key", given]) == 0
        assert f"a known key: {vkey}" in capsys.readouterr().out
    for given in ([], ["--key", key("somebody else").vkey], ["--key", key("x", "other.example/log").vkey]):
        assert main([str(path), *given]) == 3
        printed = capsys.readouterr().out
        assert printed.startswith("unknown signer: ")
        assert "\nUNKNOWN key: " in printed
        assert all(vkey in printed for vkey in given[1:])
    assert main([str(path), "--key", key("somebody else").vkey, "--key", vkey]) == 0


def test_the_key_of_the_installation_counts_where_none_is_given(log: Log, path: Path) -> None:
    own, other = log.keys[0].public_key, key("somebody else").public_key
    assert main([str(path)], own_key=lambda: own) == 0
    assert main([str(path)], own_key=lambda: other) == 3
    assert main([str(path), "--key", other.vkey], own_key=lambda: own) == 3


def test_the_key_of_the_installation_is_that_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "signing-key.pem"
    monkeypatch.setattr(environment(), "signing_key_file", file)
    assert own_public_key() is None
    made = key("first")
    made.write(file)
    assert own_public_key() == made.public_key
    file.write_text("no key")
    with pytest.raises(KeyFault):
        own_public_key()


def test_a_card_sealed_and_signed_by_somebody_else_in_the_log_s_name(
    log: Log, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every digest, proof and signature in it is right."""
    forger, keys_file = Log("forger", notes=3), tmp_path / "keys.json"

    def change(inside: dict[str, bytes]) -> None:
        inside |= {"CARD.md": b"# safe\n", "keys.json": canonical(forger.keys_file())}
        inside |= {"model-signing.pub": key_note(forger.keys[0]).encode(), "model.sig": bundle(WEIGHTS, forger)}

    path.write_bytes(packed(reissued(forger, card(log), change)))
    keys_file.write_bytes(card(log)["keys.json"])
    for given, status, verdict, words in (
        ([], 3, "unknown signer: ", "the card's own keys.json"),
        (["--key", log.keys[0].vkey], 3, "unknown signer: ", "has not the known key"),
        (["--key", str(keys_file)], 1, "changed: ", "signed by none of the keys that this log ever had"),
    ):
        assert main([str(path), *given]) == status
        printed = capsys.readouterr().out
        assert printed.startswith(verdict)
        assert words in printed


@pytest.mark.parametrize("card_of", ["forger", "platform before", "platform now", "platform later"])
def test_a_log_s_keys_and_cards_from_before_and_after_them(log: Log, card_of: str) -> None:
    """`keys.json` of a log of two keys, the first of which was stolen since."""
    first = Log()
    made = card(first)
    log.rotate("second")
    kept = References((log_keys(json.loads(card(log)["keys.json"])),))
    if card_of == "forger":
        first.rotate("forger")
        report = check(card(first), kept)
        assert report.verdict == "changed"
        assert f"after {log.keys[0].vkey} came {log.keys[1].vkey}" in faults(report)["key"]
        return
    if card_of == "platform later":
        log.rotate("third")
    assert check(made if card_of == "platform before" else card(log), kept).accepted


def test_a_replaced_key_is_followed_from_the_one_given(log: Log) -> None:
    log.rotate("second")
    log.rotate("third")
    made = card(log)
    first, second, third = (one.public_key for one in log.keys)
    assert "2 statements" in line(check(made, known(first)), "key")
    assert "replaced 2 times" in line(check(made, References()), "key")
    assert check(made, known(second)).accepted
    assert check(made, known(third)).accepted
    # the statement that leads to the third key is missing, or is one that the first key made
    chain = json.loads(made["keys.json"])
    for rotations in (chain["rotations"][:1], chain["rotations"][:1] * 2, []):
        changed = {**made, "keys.json": canonical({**chain, "rotations": rotations})}
        assert "key" in faults(check(changed))


def test_a_card_signed_by_a_key_before_the_one_given(log: Log) -> None:
    made = card(log)
    log.rotate("second")
    chain = {"origin": log.origin, "keys": [one.vkey for one in log.keys], "rotations": log.rotations}
    second = known(log.keys[1].public_key)
    report = check({**made, "keys.json": canonical(chain)}, second)
    assert report.exit_status == 1
    assert "which is not known here" in faults(report)["attestation"]
    report = check(made, second)
    assert report.verdict == "unknown signer"
    assert "give the log's keys.json" in line(report, "key")


def test_who_has_a_key_that_was_replaced_makes_no_card_under_the_new_one(log: Log) -> None:
    """The statement that leads to the new key is public: a stolen old key must not sign in the new one's name."""
    log.rotate("second")
    stolen, newest = log.keys
    log.keys.append(stolen)  # what signs
    sealed = Sealed()
    sealed.seal()
    inside = small_cards._inside(log, sealed, "internal")
    chain = {"origin": log.origin, "keys": [stolen.vkey, newest.vkey], "rotations": log.rotations}
    made = small_cards.issue(log, {"internal": {**inside, "keys.json": canonical(chain)}})["internal"]
    for references in (
        References(),
        known(stolen.public_key),
        known(newest.public_key),
    ):
        problems = faults(check(made, references))
        assert "which is not known here" in problems["attestation"]
        assert f"is not signed by {newest.vkey}" in problems["checkpoint"]


# ---------------------------------------------------------------------- parts of two cards


def test_an_attestation_that_was_never_logged(log: Log) -> None:
    """Who holds the key alone signs another CARD.md; the log's entry names the attestation that was issued."""
    made = card(log)
    statement = json.loads(dsse.parsed(made["attestation.dsse.json"]).payload)
    subjects = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]} | {"CARD.md": sha256(b"else")}
    payload = dsse.statement(subjects, dsse.PREDICATE_TYPE, statement["predicate"])
    signed = dsse.envelope(payload, dsse.PAYLOAD_TYPE, log.keys[0])
    report = check({**made, "CARD.md": b"else", "attestation.dsse.json": signed})
    assert report.exit_status == 1
    assert list(faults(report)) == ["model signing", "log entry"], "card.sig lists the CARD.md that was issued"


def test_a_field_for_another_audience(log: Log) -> None:
    public, internal = (cards(log)[audience] for audience in ("public", "internal"))
    document = json.loads(public["record.json"])
    inner = json.loads(internal["record.json"])["sections"]["handling"]["inventory"]
    assert document["sections"]["handling"]["inventory"]["withheld"]
    document["sections"]["handling"]["inventory"] = inner
    problems = faults(check({**public, "record.json": canonical(document)}))
    assert "handling.inventory is shown" in problems["record root"]


# ---------------------------------------------------------------------- completions, and one shown alone


def committed() -> Commitments:
    return Commitments(json.loads(line) for line in small_cards.commitments().splitlines())


def test_a_leaf_is_the_trainers() -> None:
    sample = {"index": 0, "completion": "<answer>é</answer>", "tokens": 7, "finish_reason": "eos", "reward": 0.5}
    problem = {"step": 3, "index": 1, "problem_id": "a", "prompt": "1 + 1?", "answer": "2"}
    rewards = {"reward_mean": 0.5, "reward_std": 0.0, "signal": "mixed"}
    samples = [{**sample, "components": {}, "advantage": -1.0}]
    ((salted,), committed) = trainer.commit([records.Group.model_validate({**problem, **rewards, "samples": samples})])
    (leaf,) = trainer.unpack(committed.leaves)
    content = trainer.sample_content(salted, salted.samples[0])
    assert sample_leaf(str(salted.samples[0].salt), content) == leaf


def test_the_runs_root_is_over_all_attempts_in_order() -> None:
    tree = committed()
    assert tree.count == 16
    assert tree.root() == root(leaf for line in tree.lines for leaf in line.leaves)
    assert Commitments([]).root() == EMPTY_ROOT
    assert tree.current(2) is tree.lines[2]  # the second attempt's
    assert tree.index(2, 0) == 8
    for step, position in ((2, 4), (4, 0)):
        with pytest.raises(SampleFault):
            tree.index(step, position)


def test_commitments_other_than_the_log_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_cards, "run_root", lambda _: "0" * 64)
    problems = faults(check(card(Log())))
    assert set(problems) == {"completions"}
    assert f"and the log says '{'0' * 64}'" in problems["completions"]
    monkeypatch.undo()
    made = card(Log())
    shorter = b"".join(made["commitments.jsonl"].splitlines(keepends=True)[:-1])
    assert {"sealed files", "attestation", "completions"} <= set(faults(check({**made, "commitments.jsonl": shorter})))


# ---------------------------------------------------------------------- one sample alone


def proof(step: int = 3, index: int = 1, at: int = 1) -> dict[str, Any]:
    line = group(step, index)
    content = sample_content(line, at)
    return sample_proof(committed(), position=2 * index + at, salt=line["samples"][at]["salt"], content=content)


def test_one_sample_shown_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    public = tmp_path / "card.zip"
    public.write_bytes(packed(downloaded(log := Log(), card(log, audience="public"))))
    (tmp_path / "sample.json").write_bytes(canonical(proof()))
    assert main([str(public), "--trace", str(tmp_path / "sample.json"), "--key", key("first").vkey]) == 0
    assert "step 3, group 1, sample 1 is in this run's tree: 20 characters, reward 1" in capsys.readouterr().out
    made = card(Log())
    for number in range(12):
        step, index, at = number // 4 + 1, number // 2 % 2, number % 2
        assert check(made, replace(OWN, sample=proof(step, index, at))).accepted


def test_a_sample_that_is_changed_or_of_another_run() -> None:
    made, good = card(Log()), proof()
    content = good["sample"]
    changes: tuple[dict[str, Any], ...] = (
        {"sample": {**content, "completion": "else"}},
        {"sample": {**content, "reward": 0.0}},
        {"sample": {}},
        {"salt": "0" * 32},
        {"salt": "no"},
        {"index": good["index"] - 1},
        {"path": good["path"][::-1]},
        {"path": ["x"]},
        {"run_root": "0" * 64},
        {"size": 17},
        {"more": 1},
    )
    for one in (*({**good, **change} for change in changes), {}, [], "x"):
        assert list(faults(check(made, replace(OWN, sample=one)))) == ["sample"], one
