"""The command `cohort`. Parses first and imports Django only in the commands that need it; never torch.

An error the person can fix is printed as one message without a traceback; any other keeps its traceback, because it is
a defect of ours.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cohort import __version__
from cohort.cli.embedded.home import Home, HomeError
from grpo_core.errors import GrpoError


def main(argv: Sequence[str] | None = None) -> int:
    os.umask(0o077)
    command_line = list(sys.argv[1:] if argv is None else argv)
    if command_line and command_line[0] in _SEPARATE_PARSERS:  # the rest is parsed by the command itself
        return _exit_status(lambda: _SEPARATE_PARSERS[command_line[0]](command_line[1:]))
    arguments = _parser().parse_args(command_line)
    return _exit_status(lambda: int(arguments.run(arguments)))


def _exit_status(act: Callable[[], int]) -> int:
    try:
        return act()
    except GrpoError as error:
        print(f"cohort: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cohort",
        description="Define, run, review and document GRPO training of language models.",
        epilog="`grpo --help` shows the trainer, which needs no platform.",
    )
    parser.add_argument("--version", action="version", version=f"cohort {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    up = commands.add_parser("up", help="start everything on this machine, without root")
    _place(up)
    up.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    up.add_argument("--no-trainer", action="store_true", help="leave training to workers on other machines")
    up.set_defaults(run=_up)

    demo = commands.add_parser("demo", help="start everything, train a small model, check its card")
    _place(demo)
    demo.add_argument("--no-serve", action="store_true", help="end when the card is checked, even on a terminal")
    demo.add_argument("--steps", type=_positive, metavar="N", help="optimiser steps (default: the demo preset's)")
    demo.add_argument(
        "--chat", type=Path, metavar="MODEL", help="train the instruct model in this folder on sums in a conversation"
    )
    demo.add_argument(
        "--public-sets", type=Path, metavar="DIR", help="with --chat: folder with gsm8k/, mgsm/, xstest/ to evaluate on"
    )
    demo.set_defaults(run=_demo)

    commands.add_parser("audit", help="check the audit log, sign it, give it another key, hand it on")
    commands.add_parser("replay", help="do steps of a card's run again with the trainer, and compare")
    commands.add_parser("rescore", help="score a card's stored samples again, offline")
    commands.add_parser("verify", help="check a downloaded card, without network or database")
    commands.add_parser("policy", help="check a file of rules that records are judged by")
    logs = commands.add_parser("inspect-logs", help="write a card's evaluations as logs of Inspect")
    logs.add_argument("card", type=Path, metavar="CARD.zip")
    logs.add_argument("folder", type=Path, metavar="FOLDER", help="where the logs go; must not exist")
    logs.set_defaults(run=_inspect_logs)
    commands.add_parser("manage", help="Django's commands, on the home's database")

    user = commands.add_parser("user", help="make a person and print a password for them")
    user.add_argument("name", metavar="NAME")
    user.add_argument("--project", metavar="SLUG", help="project to belong to; made when missing")
    user.add_argument(
        "--role", choices=["viewer", "reviewer", "operator", "admin"], help="default: the one they have, else operator"
    )
    user.add_argument("--new-password", action="store_true", help="for a person who is here already")
    user.add_argument(
        "--staff", action="store_true", help="let them manage the server's nodes and people, whatever their role"
    )
    may = user.add_mutually_exclusive_group()
    may.add_argument("--disable", action="store_true", help="refuse their sign-in, end their sessions")
    may.add_argument("--enable", action="store_true", help="let them sign in again")
    _home(user)
    user.set_defaults(run=_user)

    node = commands.add_parser("node", help="make a node and print its token; list, drain, revoke nodes")
    node.add_argument("name", metavar="NAME", nargs="?")
    what = node.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="show every node, and what runs there")
    what.add_argument(
        "--rotate", action="store_true", help="print another token; the old one is refused once that one is used"
    )
    what.add_argument("--revoke", action="store_true", help="refuse this node's token from now on")
    what.add_argument("--drain", action="store_true", help="give it no new run; what runs there ends there")
    what.add_argument("--undrain", action="store_true", help="let it take runs again")
    what.add_argument(
        "--broker-user",
        action="store_true",
        help="read a password from standard input and print the node's user of RabbitMQ, for import_definitions",
    )
    node.add_argument("--move", action="store_true", help="with --drain: what runs there resumes elsewhere")
    node.add_argument("--labels", metavar="A,B", help="with --broker-user: as COHORT_LABELS on the node's worker")
    node.add_argument("--gpus", type=_positive, metavar="N", help="with --broker-user: how many it has (default: none)")
    _home(node)
    node.set_defaults(run=_node)
    return parser


def _home(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--home", metavar="DIR", help="folder of everything (default: COHORT_HOME or ~/.local/share/cohort)"
    )


def _place(parser: argparse.ArgumentParser) -> None:
    _home(parser)
    parser.add_argument(
        "--port", type=_port, default=8400, help="port to listen on (default: 8400; 0 takes a free one)"
    )


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port number from 0 to 65535")
    return int(text)


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


# ---------------------------------------------------------------------- commands


def _inspect_logs(arguments: argparse.Namespace) -> int:
    from cohort.cli.inspect_logs import write

    return write(arguments.card, arguments.folder)


def _up(arguments: argparse.Namespace) -> int:
    from cohort.cli.embedded.up import serve

    home, trainer = Home.at(arguments.home), not arguments.no_trainer
    return serve(home, host=arguments.host, port=arguments.port, trainer=trainer)


def _demo(arguments: argparse.Namespace) -> int:
    from cohort.cli.demo.main import demo
    from cohort.cli.demo.tasks import ADDER, chat_task

    if arguments.public_sets is not None and arguments.chat is None:
        raise HomeError("--public-sets goes with --chat MODEL.")
    task = ADDER if arguments.chat is None else chat_task(arguments.chat.absolute(), arguments.public_sets)
    stay = sys.stdin.isatty() and sys.stdout.isatty() and not arguments.no_serve
    return demo(Home.at(arguments.home), task, port=arguments.port, steps=arguments.steps, stay=stay)


def _verify(argv: list[str]) -> int:
    from cohort.audit.keyfile import own_public_key
    from cohort.evidence.verify import main as verify

    return verify(argv, own_key=own_public_key)


def _policy(argv: list[str]) -> int:
    from cohort.evidence.policy.command import main as policy

    return policy(argv)


def _manage(argv: list[str]) -> int:
    from cohort.cli.embedded.visit import any_database

    with any_database(Home.at(None), "cohort manage"):  # `migrate` is of use on a database of another version
        from django.core.management import execute_from_command_line

        execute_from_command_line(["cohort manage", *argv])
    return 0


def _user(arguments: argparse.Namespace) -> int:
    from cohort.cli.embedded.visit import database

    given = {name: getattr(arguments, name) for name in ("project", "role", "new_password", "staff")}
    switches = arguments.disable or arguments.enable
    if switches and any(given.values()):
        raise HomeError("--disable and --enable are given alone, with the person's name.")
    with database(Home.at(arguments.home), "cohort user"):
        from cohort.cli.embedded.people import user_add, user_switch

        if switches:
            lines = [user_switch(name=arguments.name, enable=arguments.enable)]
        else:
            lines = user_add(name=arguments.name, **given)
    print("\n".join(lines))
    return 0


def _node(arguments: argparse.Namespace) -> int:
    from cohort.cli.embedded.visit import database

    if (arguments.name is None) != arguments.list:
        raise HomeError("give the node's name, or --list alone to see them all.")
    if arguments.move and not arguments.drain:
        raise HomeError("--move is of no use alone: it says how a node is drained, with --drain.")
    if (arguments.labels or arguments.gpus) and not arguments.broker_user:
        raise HomeError("--labels and --gpus are of no use alone: they say what --broker-user may read.")
    with database(Home.at(arguments.home), "cohort node"):
        from cohort.cli.embedded import people

        if arguments.list:
            line = "\n".join(people.node_lines())
        elif arguments.rotate:
            line = people.node_rotate(name=arguments.name)
        elif arguments.revoke:
            line = people.node_revoke(name=arguments.name)
        elif arguments.drain:
            line = people.node_drain(name=arguments.name, move=arguments.move)
        elif arguments.broker_user:
            line = people.node_broker_user(
                name=arguments.name,
                password=sys.stdin.readline().strip(),
                labels=[label.strip() for label in (arguments.labels or "").split(",") if label.strip()],
                gpus=arguments.gpus or 0,
            )
        elif arguments.undrain:
            line = people.node_undrain(name=arguments.name)
        else:
            line = people.node_add(name=arguments.name)
    print(line)
    return 0


def _audit(argv: list[str]) -> int:
    from cohort.cli.audit import main as audit

    return audit(argv)


def _replay(argv: list[str]) -> int:
    from cohort.cli.replay import replay

    return replay(argv)


def _rescore(argv: list[str]) -> int:
    from cohort.cli.replay import rescore

    return rescore(argv)


_SEPARATE_PARSERS = {
    "audit": _audit,
    "manage": _manage,
    "policy": _policy,
    "replay": _replay,
    "rescore": _rescore,
    "verify": _verify,
}
"""Commands with a parser of their own."""

if __name__ == "__main__":
    sys.exit(main())
