"""`grpo tasks`: which of reasoning-gym's tasks there are, and a file of problems made by one."""

import argparse
import json
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from grpo_core.errors import ConfigError


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand `tasks`."""
    parser = commands.add_parser(
        "tasks",
        help="list reasoning-gym's tasks, or make a file of problems by one",
        description="Without NAME: list the tasks. With NAME: write its problems, to train on with the reward kind "
        "reasoning_gym.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME")
    parser.add_argument("--size", type=int, default=1000, metavar="N", help="problems (default 1,000)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="start of every random choice (default 0)")
    parser.add_argument(
        "--param", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the task; VALUE is JSON"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="file to write; must not exist")
    parser.set_defaults(handler=_tasks)


def _tasks(options: argparse.Namespace) -> int:
    from grpo_core.data import gym

    if options.name is None:
        for field, names in gym.TASKS.items():
            print(f"{field}: {' '.join(names)}")
        return 0
    gym.known(options.name)
    if options.out is None:
        raise ConfigError(f"give --out FILE, where the problems of {options.name} go")
    if options.out.exists():
        raise ConfigError(f"{options.out} exists already; give another --out, or remove it")
    lines = gym.problems(options.name, size=options.size, seed=options.seed, params=_params(options.param))
    # A temporary file, renamed once complete.
    folder = options.out.resolve().parent
    with (
        ExitStack() as unless_whole,
        tempfile.NamedTemporaryFile(dir=folder, prefix=".tasks-", delete=False) as temporary,
    ):
        unless_whole.callback(os.unlink, temporary.name)
        count = sum(1 for line in lines if temporary.write(line))
        temporary.flush()
        os.chmod(temporary.name, 0o644)
        os.rename(temporary.name, options.out)
        unless_whole.pop_all()
    print(f"{count:,} problems of {options.name}: {options.out}")
    return 0


def _params(given: list[str]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--param takes NAME=VALUE, such as max_terms=3, not {text!r}")
        try:
            params[name] = json.loads(value)
        except ValueError:
            params[name] = value
    return params
