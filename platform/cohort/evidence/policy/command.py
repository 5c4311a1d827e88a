"""`cohort policy`: check a policy's file, and list the kinds of rules and the figures that there are."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from cohort.evidence.plain_text import counted, one_line
from cohort.evidence.policy.figures import FIGURES
from cohort.evidence.policy.kinds import KINDS
from cohort.evidence.policy.spec import REQUIRED
from cohort.evidence.policy.text import MOST_BYTES, Policy, PolicyFault, parse_policy
from grpo_core.errors import GrpoError


class PolicyFileFault(GrpoError):
    """There is no policy in the file."""

    code: ClassVar[str] = "policy_file"
    exit_status: ClassVar[int] = 2


def policy_file(path: Path) -> Policy:
    """Raises PolicyFileFault with every problem and its line."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        return parse_policy(content.decode("utf-8"))
    except OSError as error:
        raise PolicyFileFault(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise PolicyFileFault(f"{path} is not UTF-8 text; a policy is a YAML or JSON file") from None
    except PolicyFault as fault:
        lines = "\n".join(f"  {one_line(str(problem))}" for problem in fault.problems)
        raise PolicyFileFault(f"{path} is no policy:\n{lines}") from None


def main(argv: Sequence[str] | None = None, prog: str = "cohort policy") -> int:
    """0: the file is a policy. 2: it is none, or cannot be read."""
    parser = argparse.ArgumentParser(prog=prog, description="Check a policy's file (cohort-policy/1).")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    check = commands.add_parser("check", help="say what is wrong with a file, line by line")
    check.add_argument("file", metavar="FILE", type=Path)
    commands.add_parser("kinds", help="list the kinds of rules, their parameters, and the figures")
    arguments = parser.parse_args(argv)
    if arguments.command == "kinds":
        print("\n".join(kinds_text()))
        return 0
    try:
        policy = policy_file(arguments.file)
    except PolicyFileFault as fault:
        print(f"{prog}: {fault}", file=sys.stderr)
        return PolicyFileFault.exit_status
    print(f"{one_line(policy.name)}: {counted(len(policy.rules), 'rule')}, digest {policy.digest}")
    return 0


def kinds_text() -> list[str]:
    """As Markdown, for docs/policies.md and the terminal."""
    lines = []
    for spec in KINDS.values():
        lines += [f"### `{spec.name}`", "", f"{spec.demands} {spec.judged} Reads: {', '.join(spec.reads)}.", ""]
        lines += [f"Where it did not pass: {spec.mend[0].lower()}{spec.mend[1:]}", ""]
        for param in spec.params:
            lines.append(f"- `{param.name}`{_default(param.default)}: {param.words}")
        lines += [""] if spec.params else []
    lines += ["### Figures", "", "| figure | is | read from |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {figure.words} | `{figure.path}` |" for name, figure in FIGURES.items()]
    return lines


def _default(value: object) -> str:
    if value is REQUIRED:
        return " (needed)"
    if value in (None, ()):
        return ""
    return f" ({', '.join(value) if isinstance(value, tuple) else value})"
