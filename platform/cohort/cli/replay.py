"""`cohort replay` and `cohort rescore`: what a card's run did, done again by the trainer, without the platform."""

import argparse
import sys
from collections.abc import Sequence

from cohort.cli.card_folder import CardUnfit, add_card, at_home, grpo, unpacked
from cohort.evidence.verify.report import EXIT_STATUS
from grpo_core.cli import replay as replay_options
from grpo_core.cli import rescore as rescore_options
from grpo_core.errors import GrpoError


def replay(argv: Sequence[str]) -> int:
    """0: equal to the bit, or within bounds; 1: something differs, or the card was changed; 2: cannot be done."""
    parser = argparse.ArgumentParser(
        prog="cohort replay",
        description="Do steps of a card's run again with the trainer; compare samples, rewards, losses and weights.",
        epilog=replay_options.EXIT_WORDS,
    )
    add_card(parser)
    replay_options.add_choices(parser)
    arguments = parser.parse_args(argv)
    return _run(parser.prog, "replay", arguments, replay_options.words_of(arguments))


def rescore(argv: Sequence[str]) -> int:
    """0: every reward is the stored one, or there is another verifier; 1: one differs; 2: cannot be done."""
    parser = argparse.ArgumentParser(
        prog="cohort rescore",
        description="Score a card's stored samples again: with its own verifier, which must give the stored rewards, "
        "or with another, to see what that would have paid.",
        epilog=rescore_options.EXIT_WORDS,
    )
    add_card(parser)
    rescore_options.add_choices(parser)
    arguments = parser.parse_args(argv)
    return _run(parser.prog, "rescore", arguments, rescore_options.words_of(arguments))


def _run(prog: str, command: str, arguments: argparse.Namespace, words: Sequence[str]) -> int:
    try:
        with unpacked(arguments) as card:
            options, variables = at_home(arguments, card, needed=command == "replay")
            line = [command, str(card.path), "--shown-as", str(arguments.card), *options, *words]
            return grpo(line, card, variables=variables, as_json=arguments.json)
    except CardUnfit as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return error.status
    except GrpoError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return EXIT_STATUS["cannot check"]
