"""A card that the trainer's commands are to work on: checked as `cohort verify` checks it, then the files that they
need, unpacked. Knows no Django.

The trainer runs in a process of its own: this one never loads torch.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.audit.keyfile import own_public_key
from cohort.cli.embedded.home import Home, HomeError
from cohort.evidence.card_reader import CardReader
from cohort.evidence.keys import load
from cohort.evidence.verify.check import References, verify_card
from cohort.evidence.verify.command import given_keys
from cohort.evidence.verify.report import VERDICTS, Report
from cohort.evidence.verify.signed import KnownKeys
from grpo_core.errors import GrpoError
from grpo_core.files.disk import raise_when_full

_NEEDED = (
    "record.json",
    "config.yaml",
    "manifest.json",
    "metrics.jsonl",
    "checkpoints.jsonl",
    "commitments.jsonl",
    "problems.jsonl",
)
_TRACES = "traces/"


class CardUnfit(GrpoError):
    """The card is not as it was issued, or cannot be checked: nothing is compared with it."""

    def __init__(self, report: Report) -> None:
        faults = [check for check in report.checks if check.status in ("failed", "cannot")]
        listed = "".join(f"\n  {check.name}: {check.lines[0]}" for check in faults)
        super().__init__(f"{report.name} is not used: {report.verdict}: {VERDICTS[report.verdict]}{listed}")
        self.status = report.exit_status


@dataclass(frozen=True)
class CardFolder:
    """An unpacked card."""

    path: Path
    report: Report
    run: int

    @property
    def words(self) -> str:
        """What the check says of it, in one line."""
        return f"{self.report.verdict}: {VERDICTS[self.report.verdict]}"


def add_card(parser: argparse.ArgumentParser) -> None:
    """Arguments of every command that takes a card and its home."""
    parser.add_argument("card", metavar="CARD.zip", type=Path)
    parser.add_argument(
        "--key", metavar="PUB", action="append", default=[], help="the platform's public key, as for cohort verify"
    )
    parser.add_argument(
        "--home", metavar="DIR", help="home of the Cohort that trained: where the run's folder, models and key are"
    )


@contextmanager
def unpacked(arguments: argparse.Namespace) -> Iterator[CardFolder]:
    """The card of these arguments, until the block ends. Raises CardUnfit, CannotRead, KeyFault."""
    report = verify_card(arguments.card, References(_known(arguments)))
    if report.verdict in ("changed", "cannot check") or report.document is None:
        raise CardUnfit(report)
    with tempfile.TemporaryDirectory(prefix="cohort-card-") as folder, arguments.card.open("rb") as handle:
        reader = CardReader(handle)
        reader.open()
        with raise_when_full(Path(folder), f"the files of {arguments.card}"):
            for name in reader.entries:
                if name in _NEEDED or name.startswith(_TRACES):
                    _unpack(reader, name, Path(folder) / name)
        yield CardFolder(Path(folder), report, int(report.document["head"]["run"]))


def _known(arguments: argparse.Namespace) -> tuple[KnownKeys, ...]:
    if arguments.key:
        return tuple(given_keys(text) for text in arguments.key)
    if arguments.home is not None and os.access(key := Home.at(arguments.home).signing_key, os.R_OK):
        return (KnownKeys((load(key).public_key,)),)
    own = own_public_key()
    return () if own is None else (KnownKeys((own,)),)


def _unpack(reader: CardReader, name: str, path: Path) -> None:
    """The layout's check has refused every name that could lead out of the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for chunk in reader.chunks(name):
            file.write(chunk)


def at_home(arguments: argparse.Namespace, card: CardFolder, *, needed: bool) -> tuple[list[str], dict[str, str]]:
    """(options that name the run's folder, variables that name the models), of the home that is given. Raises HomeError
    where the folder is `needed` and not there."""
    if arguments.home is None:
        return [], {}
    home = Home.at(arguments.home)
    folder = home.runs / f"run-{card.run}"
    if not folder.is_dir() and not needed:
        return [], {}
    if not folder.is_dir():
        raise HomeError(
            f"{folder} is not there: run {card.run} was not trained in this home, or its folder was removed. Give "
            "--run DIR, or --data FILE and --model DIR"
        )
    return ["--run", str(folder)], {"GRPO_MODELS": str(home.models)}


def grpo(words: Sequence[str], card: CardFolder, *, variables: dict[str, str], as_json: bool) -> int:
    """Run the trainer's command on the card and print its report with what the check says of the card; returns its
    exit status."""
    command = [sys.executable, "-P", "-m", "grpo_core.cli.main", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}, check=False)
    if not done.stdout:
        return done.returncode
    if as_json:
        checked = {"verdict": card.report.verdict, "seal": card.report.seal}
        content: dict[str, Any] = json.loads(done.stdout)
        print(json.dumps({"card": checked, **content}, ensure_ascii=False, indent=2))
    else:
        first, *rest = done.stdout.splitlines()
        print("\n".join([first, f"card      {card.words}", *rest]))
    return done.returncode
