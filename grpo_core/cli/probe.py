"""`grpo probe`: tests a reward before a run learns from it. Imports what is heavy only when it runs.

Exit status: 0 clean, 20 it rewards wrong answers, 21 it refuses right ones, 22 undecided; below 20, and 75, as for
every command (grpo_core/errors.py).
"""

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.cli.eval import check_place, positive, write
from grpo_core.errors import ConfigError
from grpo_core.runtime.signals import Stop

if TYPE_CHECKING:
    from grpo_core.config.reward import RewardConfig
    from grpo_core.config.run import DataConfig
    from grpo_core.data.problem import Problem
    from grpo_core.rewards import Rubric

STATUS = {"clean": 0, "pays_wrong": 20, "rejects_right": 21, "undecided": 22}
_FEW = 5
"""The default number of problems where a judge is called: each costs some hundred calls."""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand `probe`."""
    parser = commands.add_parser(
        "probe",
        help="test which right answers a reward refuses and which wrong ones it rewards",
        description="Test a reward before a run learns from it: with right answers written in other ways, wrong ones, "
        "and completions that answer nothing.",
        epilog="Exit status: 0 clean, 20 rewards wrong answers, 21 refuses right ones, 22 undecided.",
    )
    parser.add_argument("what", type=Path, metavar="CONFIG|REWARD", help="a run's config, or a file with its reward")
    parser.add_argument(
        "--data", type=Path, metavar="FILE", help="problems (default: the config's, else built-in ones)"
    )
    parser.add_argument("--format", metavar="LAYOUT", help="layout of --data, as data.format names it (default auto)")
    parser.add_argument("--builtin", action="store_true", help="take the built-in problems, whatever the config says")
    parser.add_argument(
        "--problems",
        type=positive,
        metavar="N",
        help=f"how many are taken (default 20; {_FEW} where a judge is asked)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="picks the problems (default 0)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the report as JSON")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(handler=_probe)


def _probe(options: argparse.Namespace) -> int:
    from grpo_core.probe.report import PROBLEMS
    from grpo_core.probe.run import probe_rubric
    from grpo_core.probe.text_report import lines
    from grpo_core.rewards import Rubric, Runner
    from grpo_core.rewards.base import Context
    from grpo_core.runtime.progress import Progress
    from grpo_core.text import printable

    check_place(options.out, folder=False)
    reward, data = read_reward(options.what)
    if options.builtin and options.data is not None:
        raise ConfigError("--builtin and --data are two answers to one question; give one of them")
    rubric = Rubric(reward)
    problems, builtin = _problems(options, rubric, data)
    judged = any(part.kind.mode == "judge" for part in rubric.parts)

    def opened() -> Runner:
        base = options.what.resolve().parent
        return Runner(rubric, Context(limits=rubric.config.limits, base=base, device=device_of(rubric)))

    with Stop() as stop, closing(Progress(out=sys.stderr)) as progress, opened() as runner:
        report = probe_rubric(
            rubric,
            problems,
            runner=runner,
            limit=options.problems or (_FEW if judged else PROBLEMS),
            seed=options.seed,
            check=stop.raise_if_requested,
            progress=progress.part,
            fresh=opened,
            source="builtin" if builtin else "data",
        )
    text = json.dumps(report.to_json(), ensure_ascii=False, indent=2)
    if options.out is not None:
        write(options.out, text + "\n")
    print(text if options.json else "\n".join(map(printable, lines(report))))
    return STATUS[report.verdict]


def device_of(rubric: "Rubric") -> str:
    """torch is loaded only where weights are."""
    if not any(part.kind.mode == "model" for part in rubric.parts):
        return "cpu"
    from grpo_core.distributed.environment import pick_device

    return str(pick_device("auto"))


def read_reward(path: Path) -> "tuple[RewardConfig, tuple[Path, DataConfig] | None]":
    """The reward, and where the config's problems are; the file may hold a whole config or its reward alone."""
    import yaml

    from grpo_core.config.messages import validated
    from grpo_core.config.reward import RewardConfig
    from grpo_core.config.run import RunConfig
    from grpo_core.config.yaml_text import parse_yaml

    try:
        content: Any = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    if isinstance(content, dict) and content.keys() == {"reward"}:
        content = content["reward"]
    if isinstance(content, dict) and "components" in content:
        return validated(RewardConfig, content, f"{path} is not a valid reward", prefix="reward"), None
    config = RunConfig.from_file(path)
    return config.reward, (path.resolve().parent, config.data)


def _problems(
    options: argparse.Namespace, rubric: "Rubric", data: "tuple[Path, DataConfig] | None"
) -> "tuple[list[Problem], bool]":
    """Problems, and whether they are the built-in ones."""
    from grpo_core.data.hub import find_data
    from grpo_core.data.loaders import load_problems
    from grpo_core.probe.cases.problems import problems_builtin

    if options.format is not None and options.data is None:
        raise ConfigError("--format says how --data is read; give --data too")
    if options.data is not None:
        return load_problems(options.data, options.format or "auto"), False
    if data is not None and not options.builtin:
        base, part = data
        return load_problems(
            find_data(part.path, part.hub, base=base), part.format, columns=part.columns, limit=part.limit
        ), False
    return problems_builtin(rubric), True
