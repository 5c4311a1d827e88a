"""The command `cohort verify`, and what it prints."""

import argparse
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cohort.evidence.keys import KeyFault, PublicKey, parse_vkey
from cohort.evidence.plain_text import one_line, printable
from cohort.evidence.verify.check import CannotRead, References, verify_card
from cohort.evidence.verify.report import Check, Report, about

_MARKS = {"ok": "ok", "failed": "FAILED", "cannot": "CANNOT", "withheld": "-"}
_MOST_PROOF_BYTES = 64 * 1024**2
VERDICTS = {
    0: "accepted: the card is as it was issued",
    1: "rejected: this is not the card as it was issued",
    2: "cannot be checked: nothing was found changed, and something is missing for a judgement",
}
NEVER_PROVEN = (
    "That the training ran as stated: a card shows what the trainer reported, not that it told the truth.",
    "That entries were true when they were written, above all a person's words.",
    "Anything about behaviour that was not evaluated.",
)
"""Printed in addition to what each check does not prove."""


def main(argv: Sequence[str] | None = None, prog: str = "cohort verify") -> int:
    """0 accepted, 1 changed, 2 cannot be checked."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Check a downloaded card, offline.",
        epilog="Ends with 0 when the card is good, 1 when it was changed, 2 when it cannot be checked.",
    )
    parser.add_argument("card", metavar="CARD.zip", type=Path)
    parser.add_argument(
        "--against", metavar="OLDER.zip", type=Path, help="an earlier card: was the log only added to since then?"
    )
    parser.add_argument(
        "--key", metavar="PUB", help="the platform's public key (name+hash+base64), or a file that holds it"
    )
    parser.add_argument("--trace", metavar="PROOF.json", type=Path, help="a sample shown alone: is it of this run?")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    arguments = parser.parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # not every terminal knows a minus sign
    try:
        report = _checked(arguments)
    except (CannotRead, KeyFault) as error:
        print(f"{prog}: {printable(str(error))}", file=sys.stderr)
        return error.exit_status
    except MemoryError:
        print(f"{prog}: the check needs more memory than there is; nothing is said of the card", file=sys.stderr)
        return 2
    print(json.dumps(report.as_dict() | {"never_proven": list(NEVER_PROVEN)}, indent=2) if arguments.json
          else printed(report))  # fmt: skip
    return report.exit_status


def _checked(arguments: argparse.Namespace) -> Report:
    key = given_key(arguments.key) if arguments.key is not None else None
    sample = _sample(arguments.trace) if arguments.trace is not None else None
    if arguments.against is None:
        return verify_card(arguments.card, References(key=key, sample=sample))
    try:
        with arguments.against.open("rb") as older:
            return verify_card(arguments.card, References(key, older, str(arguments.against), sample))
    except OSError as error:
        raise CannotRead(f"cannot read {arguments.against}: {error.strerror}") from None


def given_key(text: str) -> PublicKey:
    """A key as text, or out of a file that holds nothing else. Raises KeyFault, CannotRead."""
    try:
        return parse_vkey(text.strip())
    except KeyFault:
        if text.count("+") >= 2:
            raise
    try:
        with Path(text).open("rb") as file:
            content = file.read(4096)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CannotRead(
            f"{text[:200]} is no public key as name+hash+base64, nor a file that holds one: {reason}"
        ) from None
    return parse_vkey(content.decode(errors="replace").strip())


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
    lines = [f"card    {one_line(report.name)}"]
    if report.document is not None:
        lines.append(f"        {one_line(about(report.document))}")
    for check in report.checks:
        lines += _lines(check)
    lines.append(VERDICTS[report.exit_status])
    if report.accepted:
        lines += [f"        seal {report.seal}", "        Compare the seal with the one on the record's page."]
        lines += ["No card proves:", *(f"  - {line}" for line in NEVER_PROVEN)]
    return "\n".join(lines)


def _lines(check: Check) -> list[str]:
    first, *more = check.lines
    lines = [f"{_MARKS[check.status]:<7} {check.name}: {first}", *(f"        {line}" for line in more)]
    if check.status == "ok":
        lines.append(f"        not proven: {check.not_proven}")
    return lines
