"""The command `cohort verify`, and what it prints."""

import argparse
import io
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cohort.evidence.card_reader import Rejected
from cohort.evidence.cosignature import WitnessKey
from cohort.evidence.keys import KeyFault, PublicKey, parse_vkey
from cohort.evidence.plain_text import one_line
from cohort.evidence.policy.command import PolicyFileFault, policy_file
from cohort.evidence.policy.judge import EXIT_STATUS as POLICY_STATUS
from cohort.evidence.policy.judge import Judgement
from cohort.evidence.verify.check import CannotRead, References, verify_card
from cohort.evidence.verify.life import StatusQuery
from cohort.evidence.verify.online import fetch_status
from cohort.evidence.verify.report import EXIT_STATUS, VERDICTS, Check, Report, about
from cohort.evidence.verify.signed import KnownKeys, log_keys
from cohort.evidence.zip_layout import MAX_SMALL_BYTES
from grpo_core.text import printable

_MARKS = {"ok": "ok", "failed": "FAILED", "cannot": "CANNOT", "unknown": "UNKNOWN", "withheld": "-"}
_MOST_PROOF_BYTES = 64 * 1024**2
NEVER_PROVEN = (
    "That the training ran as stated: a card shows what the trainer reported, not that it told the truth.",
    "That entries were true when they were written, above all a person's words.",
    "Anything about behaviour that was not evaluated.",
)
"""Printed in addition to what each check does not prove."""


def main(
    argv: Sequence[str] | None = None,
    prog: str = "cohort verify",
    *,
    own_key: Callable[[], PublicKey | None] = lambda: None,
) -> int:
    """The exit status of the verdict. `own_key`: the key that counts as known where none is given, if there is one."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Check a downloaded card, and whether its record was revoked or superseded since. An accepted "
        "card's platform is asked for the record's status; what it is sent is the seal, and nothing else.",
        epilog="The first line is the verdict: "
        + "; ".join(f"{verdict} (exit status {status})" for verdict, status in EXIT_STATUS.items())
        + ". With --policy, of an accepted card: "
        + "; ".join(f"policy {verdict} (exit status {status})" for verdict, status in POLICY_STATUS.items())
        + ". Without a known key no card is accepted: whoever changes one can sign it with a key of their own.",
    )
    parser.add_argument("card", metavar="CARD.zip", type=Path)
    parser.add_argument(
        "--against", metavar="OLDER.zip", type=Path, help="an earlier card: was the log only added to since then?"
    )
    parser.add_argument(
        "--key",
        metavar="PUB",
        action="append",
        default=[],
        help="the platform's public key (name+hash+base64), or a file that holds it, or the platform's keys.json (at "
        "/log/keys.json), which lists the keys before it too; may be given several times",
    )
    parser.add_argument(
        "--witness",
        metavar="PUB",
        action="append",
        default=[],
        help="the public key of a witness of the log (name+hash+base64): check its signatures under the checkpoints of "
        "card and status; may be given several times",
    )
    parser.add_argument("--trace", metavar="PROOF.json", type=Path, help="a sample shown alone: is it of this run?")
    parser.add_argument(
        "--policy",
        metavar="FILE",
        type=Path,
        help="rules (cohort-policy/1) that the record of an accepted card must meet",
    )
    parser.add_argument(
        "--offline",
        action="store_true",
        help="ask no platform: what happened since the seal is then known as of the status in the zip alone",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    arguments = parser.parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # not every terminal knows a minus sign
    try:
        report = _checked(arguments, own_key)
    except (CannotRead, KeyFault, PolicyFileFault) as error:
        return _cannot(prog, str(error))
    except MemoryError:
        return _cannot(prog, "the check needs more memory than there is; nothing is said of the card")
    print(json.dumps(report.as_dict() | {"never_proven": list(NEVER_PROVEN)}, indent=2) if arguments.json
          else printed(report))  # fmt: skip
    return report.exit_status


def _cannot(prog: str, why: str) -> int:
    print(f"{prog}: cannot check: {printable(why)}", file=sys.stderr)
    return EXIT_STATUS["cannot check"]


def _checked(arguments: argparse.Namespace, own_key: Callable[[], PublicKey | None]) -> Report:
    known = tuple(given_keys(text) for text in arguments.key)
    if not known and (own := own_key()) is not None:
        known = (KnownKeys((own,)),)
    sample = _sample(arguments.trace) if arguments.trace is not None else None
    policy = policy_file(arguments.policy) if arguments.policy is not None else None
    witnesses = tuple(WitnessKey.parse(text.strip()) for text in arguments.witness)
    query = StatusQuery(datetime.now(UTC), None if arguments.offline else fetch_status)
    references = References(known, sample=sample, witnesses=witnesses, policy=policy, status=query)
    if arguments.against is None:
        return verify_card(arguments.card, references)
    try:
        with arguments.against.open("rb") as older:
            compared = replace(references, older=older, older_name=str(arguments.against))
            return verify_card(arguments.card, compared)
    except OSError as error:
        raise CannotRead(f"cannot read {arguments.against}: {error.strerror}") from None


def given_keys(text: str) -> KnownKeys:
    """A key as text, or out of a file that holds nothing else, or those of a keys.json. Raises KeyFault, CannotRead."""
    try:
        return KnownKeys((parse_vkey(text.strip()),))
    except KeyFault:
        if text.count("+") >= 2:
            raise
    try:
        with Path(text).open("rb") as file:
            content = file.read(MAX_SMALL_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CannotRead(
            f"{text[:200]!a} is no public key as name+hash+base64, nor a file that holds one: {reason}. Get the "
            "key, or keys.json (at /log/keys.json), from the platform's operator"
        ) from None
    if not content.lstrip().startswith(b"{"):
        return KnownKeys((parse_vkey(content.decode(errors="replace").strip()),))
    try:
        return log_keys(json.loads(content))
    except (ValueError, RecursionError):
        raise KeyFault(f"{text[:200]} is no list of keys as keys.json has it: it is not JSON") from None
    except Rejected as fault:
        raise KeyFault(f"{text[:200]}: {fault}") from None


def _sample(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_PROOF_BYTES + 1)
        if len(content) > _MOST_PROOF_BYTES:
            raise CannotRead(f"{path} is larger than the {_MOST_PROOF_BYTES:,} bytes of a sample with its proof")
        return json.loads(content)
    except OSError as error:
        raise CannotRead(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise CannotRead(f"{path} is no sample with its proof: it is not JSON") from None


def printed(report: Report) -> str:
    lines = [_first_line(report)]
    lines += [f"{'why' if at == 0 else '':<7} {line}" for at, line in enumerate(report.why)]
    lines.append(f"card    {one_line(report.name)}")
    if report.document is not None:
        lines.append(f"        {one_line(about(report.document))}")
    for check in report.checks:
        lines += _lines(check)
    if report.judgement is not None:
        lines += _policy_lines(report.judgement)
    if report.verdict == "unknown signer":
        lines.append("        Give the platform's public key, or its keys.json, with --key.")
    if report.whole:
        lines += [f"seal    {report.seal}", "        Compare the seal with the one on the record's page."]
        lines += ["No card proves:", *(f"  - {line}" for line in NEVER_PROVEN)]
    return "\n".join(lines)


def _first_line(report: Report) -> str:
    judgement = report.judgement
    if judgement is None:
        return f"{report.verdict}: {VERDICTS[report.verdict]}"
    verdict = "" if judgement.verdict == "cannot be judged" else "is "
    return f"{report.verdict}, and the policy {verdict}{judgement.verdict}: {one_line(judgement.summary)}"


_ANSWERS = {"passed": "ok", "failed": "FAILED", "cannot": "CANNOT"}


def _policy_lines(judgement: Judgement) -> list[str]:
    policy = judgement.policy
    return [
        f"policy  {one_line(policy.name)}, digest {policy.digest}",
        *(
            f"  {_ANSWERS[judged.answer]:<7} {one_line(judged.rule.name)}: {one_line(judged.words)}"
            for judged in judgement.rules
        ),
    ]


def _lines(check: Check) -> list[str]:
    first, *more = check.lines
    lines = [f"{_MARKS[check.status]:<7} {check.name}: {first}", *(f"        {line}" for line in more)]
    if check.status == "ok":
        lines.append(f"        not proven: {check.not_proven}")
    return lines
