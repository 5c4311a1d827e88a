"""`cohort verify --policy` and `cohort policy` as commands: exit statuses, first lines, files that are no policy."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cohort.cli.main import main as cohort
from cohort.evidence import pyz
from cohort.evidence.policy.command import main as policy_command
from cohort.evidence.policy.judge import judge
from cohort.evidence.policy.text import policy_of
from cohort.evidence.policy.view import RecordView
from cohort.evidence.verify import main
from grpo_core.config.yaml_text import dump_yaml
from tests.factories.small_cards import OWN, Log, Sealed, card, check, faults, packed
from tests.factories.statuses import downloaded

KEY = OWN.known[0].keys[0].vkey
ENDED = {"name": "it succeeded", "rule": "ended"}
FAILED = {"name": "it failed", "rule": "ended", "accept": ["failed"]}
IMPROVED = {"name": "\x1b[31mrises", "rule": "improved", "suites": ["heldout"]}
SIGNED = {"name": "two signed", "rule": "sign_offs"}
INVENTORY = {"name": "inventory", "rule": "stated", "fields": ["handling.inventory"]}


def content(*rules: dict[str, Any]) -> dict[str, Any]:
    return {"schema": "cohort-policy/1", "name": "release", "rules": list(rules)}


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(*rules: dict[str, Any]) -> str:
        path = tmp_path / "policy.yaml"
        path.write_text(dump_yaml(content(*rules)))
        return str(path)

    return write


def zipped(tmp_path: Path, audience: str = "internal") -> str:
    path = tmp_path / f"{audience}.zip"
    log = Log(notes=4)
    path.write_bytes(packed(downloaded(log, card(log, audience=audience), state="not signed off")))
    return str(path)


@pytest.mark.parametrize(
    ("rules", "audience", "status", "first"),
    [
        ([ENDED], "internal", 0, "accepted, and the policy is met: 1 of 1 rules passed"),
        (
            [ENDED, FAILED],
            "internal",
            10,
            "accepted, and the policy is not met: 1 of 2 rules passed; failed: it failed",
        ),
        ([FAILED, SIGNED], "internal", 10, "accepted, and the policy is not met"),
        ([ENDED, SIGNED], "internal", 10, "accepted, and the policy is not met"),
        ([INVENTORY], "internal", 10, "accepted, and the policy is not met"),
        ([INVENTORY], "public", 11, "accepted, and the policy cannot be judged"),
    ],
)
def test_the_exit_status_is_the_answer(
    rules: Any, audience: str, status: int, first: str, written: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [zipped(tmp_path, audience), "--offline", "--key", KEY, "--policy", written(*rules)]
    assert main(given) == status
    assert capsys.readouterr().out.startswith(first)


def test_a_card_that_is_not_accepted_keeps_its_own_status_and_is_not_judged(
    written: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [zipped(tmp_path), "--policy", written(FAILED)]
    assert main(given, own_key=lambda: None) == 3
    assert "policy" not in capsys.readouterr().out.splitlines()[0]
    files = card(Log(notes=4))
    files["CARD.md"] += b"."
    changed = tmp_path / "changed.zip"
    changed.write_bytes(packed(files))
    assert main([str(changed), "--key", KEY, "--policy", written(ENDED), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["exit_status"], report["policy"]) == (1, None)


def test_the_report_as_json_has_every_rule_and_nothing_steers_a_terminal(
    written: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        zipped(tmp_path),
        "--offline",
        "--key",
        KEY,
        "--policy",
        written({**IMPROVED, "name": "rises", "interval": "together"}),
    ]
    assert main([*given, "--json"]) == 10
    report = json.loads(capsys.readouterr().out)["policy"]
    assert (report["verdict"], report["rules"][0]["answer"]) == ("not met", "failed")
    assert "heldout" in report["rules"][0]["words"]
    assert main([*given[:-1], written(IMPROVED)]) == 2, "a name with a character that cannot be seen is refused"
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize("text", [b"", b"rules: [", b"\xff\xfe", b"#" * 70_000, b"schema: cohort-policy/1\nname: a\n"])
def test_a_file_that_is_no_policy_ends_before_the_card_is_judged(
    text: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_bytes(text)
    assert main([zipped(tmp_path), "--key", KEY, "--policy", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "cannot check" in captured.err
    assert policy_command(["check", str(path)]) == 2
    assert policy_command(["check", str(tmp_path / "none.yaml")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_the_command_checks_a_file_and_lists_the_kinds(written: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cohort(["policy", "check", written(ENDED, SIGNED)]) == 0
    assert "release: 2 rules, digest " in capsys.readouterr().out
    assert cohort(["policy", "kinds"]) == 0
    listed = capsys.readouterr().out
    assert "### `improved`" in listed
    assert listed.strip() in Path("docs/policies.md").read_text(), "docs/policies.md has the list as it is printed"


def test_the_file_that_needs_no_installation_judges_the_same(written: Any, tmp_path: Path) -> None:
    checker = tmp_path / "verify.pyz"
    checker.write_bytes(pyz.build())
    given = [zipped(tmp_path), "--offline", "--key", KEY, "--policy", written(ENDED, SIGNED)]
    done = subprocess.run([sys.executable, "-I", str(checker), *given], capture_output=True, text=True, check=False)
    assert done.returncode == 10, done.stderr
    assert "FAILED  two signed" in done.stdout


# ---------------------------------------------------------------------- what a record says of its policy


def sealed_with(**changes: Any) -> Sealed:
    """A record whose policy was judged at the seal, and then `changes` of the field's value."""

    def judged(document: dict[str, Any]) -> None:
        policy = policy_of(content(ENDED, SIGNED, INVENTORY))
        judgement = judge(policy, RecordView(document))
        value = {
            "name": policy.name,
            "version": 3,
            "digest": policy.digest,
            "demanded": False,
            "content": dict(policy.content),
            "verdict": judgement.verdict,
            "rules": [each.as_dict() for each in judgement.rules],
        }
        document["sections"]["oversight"]["policy"] |= {"value": value | changes, "source": "measured"}

    return Sealed(change=judged)


def forged_answers(answer: str) -> list[dict[str, Any]]:
    given = (("it succeeded", "ended", "passed", ""), ("two signed", "sign_offs", "cannot", "after the seal"))
    rows = [dict(zip(("name", "rule", "answer", "why"), row, strict=True)) for row in given]
    return [*rows, {"name": "inventory", "rule": "stated", "answer": answer, "why": ""}]


@pytest.mark.parametrize(
    ("changes", "audience", "words"),
    [
        ({}, "internal", None),
        ({}, "public", None),
        (
            {"rules": forged_answers("passed")},
            "internal",
            "rule inventory: recorded passed, the record's fields give failed",
        ),
        ({"rules": forged_answers("passed")}, "public", None),
        ({"verdict": "met"}, "internal", "recorded is 'met', and the answers give not met"),
        ({"digest": "0" * 64}, "public", "the digest of its rules is"),
        ({"name": "other"}, "public", "its name is another"),
        ({"content": content(ENDED)}, "public", "the digest of its rules is"),
        ({"content": {}}, "public", "schema must be"),
        ({"rules": None}, "public", "the record's policy"),
    ],
)
def test_answers_that_the_records_fields_do_not_give_are_noticed(
    changes: dict[str, Any], audience: str, words: str | None
) -> None:
    report = check(card(Log(notes=4), sealed_with(**changes), audience))
    if words is None:
        assert report.accepted, faults(report)
    else:
        assert words in faults(report).get("policy", ""), faults(report)
