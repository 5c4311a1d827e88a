"""`cohort audit`: check the log, sign it, give it another key, push it. Parses first; Django comes after."""

import argparse
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cohort.cli.embedded.home import Home, HomeError

if TYPE_CHECKING:
    from cohort.audit.check import Kept

_PROOF = "proof.tlog-proof"
_MOST_BYTES = 64 * 1024


def main(argv: Sequence[str]) -> int:
    """0 when all is well, 1 when the log was changed, 2 when a key or a file is missing."""
    arguments = _parser().parse_args(argv)
    if arguments.command == "make-key":
        return _make_key(arguments)
    from cohort.cli.embedded.visit import database

    with database(Home.at(arguments.home), "cohort audit"):
        return int(arguments.run(arguments) or 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cohort audit", description="The audit log (docs/audit.md).")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    check = commands.add_parser("check", help="rebuild the log from its rows and say the first fault")
    check.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="FILE",
        help="a checkpoint or a card that was kept elsewhere: the log must begin with what it was signed over",
    )
    check.set_defaults(run=_check)

    commands.add_parser("checkpoint", help="sign the log as it is now").set_defaults(run=_checkpoint)
    commands.add_parser("rotate-key", help="make another signing key, signed for by today's").set_defaults(run=_rotate)
    make = commands.add_parser("make-key", help="make the first signing key; needs no database")
    make.add_argument("file", nargs="?", metavar="FILE", help="default: COHORT_SIGNING_KEY_FILE or the home's")

    export = commands.add_parser("export", help="write every entry, a line each, and the newest checkpoint")
    export.add_argument("file", metavar="FILE", help="must not exist; the checkpoint goes to FILE.checkpoint")
    export.set_defaults(run=_export)

    push = commands.add_parser("push", help="hand the newest checkpoint to COHORT_LOG_GIT and COHORT_LOG_WITNESS")
    push.set_defaults(run=_push)
    for command in commands.choices.values():
        command.add_argument("--home", metavar="DIR", help="folder of everything (default: COHORT_HOME)")
    return parser


def _check(arguments: argparse.Namespace) -> None:
    from cohort.audit.check import check

    for line in check([_kept(Path(given)) for given in arguments.against]):
        print(f"good  {line}")
    print(
        "This says that the rows fit each other. That nobody rewrote all of it with the key in hand shows only against "
        "a checkpoint that was kept elsewhere (--against)."
    )


def _kept(path: Path) -> "Kept":
    """A checkpoint's note, or the one in a card's proof."""
    from cohort.audit.check import Kept
    from cohort.evidence.merkle import ProofError
    from cohort.evidence.merkle import parse as parse_proof

    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as card, card.open(_PROOF) as member:
                text = member.read(_MOST_BYTES).decode()
        else:
            with path.open("rb") as file:
                text = file.read(_MOST_BYTES).decode()
        return Kept(str(path), parse_proof(text).checkpoint if text.startswith("c2sp.org/tlog-proof") else text)
    except (OSError, KeyError, UnicodeDecodeError, zipfile.BadZipFile, ProofError) as error:
        raise HomeError(f"{path} holds no checkpoint that can be read: {error}") from None


def _checkpoint(arguments: argparse.Namespace) -> None:
    from cohort.audit.services import checkpoint

    print(checkpoint().note, end="")


def _make_key(arguments: argparse.Namespace) -> int:
    from cohort.audit.keyfile import make_key
    from cohort.base.environment import environment

    given = arguments.file or environment().signing_key_file
    path = Path(given).expanduser().absolute() if given else Home.at(arguments.home).signing_key
    key = make_key(path)
    print(f"The private key is in {path}, readable by you alone. Keep a copy where the database's backups are not.")
    print(key.vkey)
    return 0


def _rotate(arguments: argparse.Namespace) -> None:
    from cohort.audit.services import rotate

    key, row = rotate()
    print(f"The log is signed with another key; both have signed the checkpoint of {row.size:,} entries.")
    print(key.vkey)


def _export(arguments: argparse.Namespace) -> None:
    from cohort.audit.services import export

    count = export(Path(arguments.file))
    print(f"{count:,} entries in {arguments.file}, one a line; the checkpoint over them in {arguments.file}.checkpoint")


def _push(arguments: argparse.Namespace) -> int:
    from cohort.audit.push import push, targets

    if not targets():
        raise HomeError("neither COHORT_LOG_GIT nor COHORT_LOG_WITNESS is set, so there is nobody to push to.")
    failed = 0
    for outcome in push():
        failed += not outcome.good
        print(outcome.words, file=sys.stdout if outcome.good else sys.stderr)
    return 1 if failed else 0
