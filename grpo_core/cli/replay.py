"""`grpo replay`: does steps of a run again, from its records or its unpacked card, and compares all that they give.

The run's folder is only read. Imports what is heavy only when it runs.
"""

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_core.cli.eval import positive
from grpo_core.errors import GrpoError, Interrupted
from grpo_core.runtime.signals import Stop
from grpo_core.text import printable_lines

if TYPE_CHECKING:
    from grpo_core.files.recorded_run import RecordedRun
    from grpo_core.replay.compare import ReplayedStep
    from grpo_core.replay.report import ReplayReport
    from grpo_core.replay.steps import Stretch
    from grpo_core.runtime.progress import Progress
    from grpo_core.trainer.replay_inputs import ReplayInputs

EXIT_WORDS = (
    "Exit status 0: equal to the bit, or within the stated bounds on another kind of machine, as the first line says; "
    "1: something differs; 2: it cannot be done, because something is missing or is not the run's."
)


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand `replay`."""
    parser = commands.add_parser(
        "replay",
        help="do recorded steps of a run again and compare",
        description="Do steps of a run again, and compare samples, rewards, losses and weights with the records. What "
        "is read stays as it is.",
        epilog=EXIT_WORDS,
    )
    parser.add_argument(
        "records", type=Path, metavar="RECORDS", help="folder of the run, or folder that its card was unpacked to"
    )
    parser.add_argument("--shown-as", metavar="NAME", help="what the report calls the records (default: RECORDS)")
    add_choices(parser)
    parser.set_defaults(handler=_replay)


def add_choices(parser: argparse.ArgumentParser) -> None:
    """The options that `cohort replay` has as well."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--steps", type=positive, metavar="K", help="so many steps, drawn by --number (default: 1)")
    which.add_argument(
        "--step", type=positive, action="append", default=[], metavar="N", help="this step; may be given several times"
    )
    parser.add_argument(
        "--number", type=_number, metavar="N", help="your own number, which draws the steps (default: a random one)"
    )
    parser.add_argument(
        "--run", type=Path, action="append", default=[], metavar="DIR",
        help="folder of the run where it was trained: its checkpoints and inputs",
    )  # fmt: skip
    parser.add_argument(
        "--checkpoints", type=Path, action="append", default=[], metavar="DIR",
        help="a checkpoint, or a folder of such; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--from-start", action="store_true", help="begin with the base model, whatever checkpoints there are"
    )
    parser.add_argument("--data", type=Path, action="append", default=[], metavar="FILE", help="the run's problems")
    parser.add_argument("--model", type=Path, metavar="DIR", help="folder of the run's base model")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def words_of(options: argparse.Namespace) -> list[str]:
    """What `add_choices` read, as words of a command line again."""
    single = {"--steps": options.steps, "--number": options.number, "--model": options.model}
    several = {
        "--step": options.step,
        "--run": options.run,
        "--checkpoints": options.checkpoints,
        "--data": options.data,
    }
    given = [(name, value) for name, value in single.items() if value is not None]
    given += [(name, value) for name, values in several.items() for value in values]
    switches = [name for name, on in (("--from-start", options.from_start), ("--json", options.json)) if on]
    return [word for name, value in given for word in (name, str(value))] + switches


def _number(text: str) -> int:
    from grpo_core.replay.steps import LARGEST_NUMBER

    if not text.isascii() or not text.isdigit() or int(text) > LARGEST_NUMBER:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {LARGEST_NUMBER}")
    return int(text)


def _replay(options: argparse.Namespace) -> int:
    from grpo_core.replay.report import CANNOT
    from grpo_core.runtime.progress import Progress

    with Stop() as stop, closing(Progress(out=sys.stderr)) as progress:
        try:
            report = _report(options, progress, stop)
        except Interrupted:
            raise
        except GrpoError as error:
            print(f"grpo: cannot replay: {printable_lines(str(error))}", file=sys.stderr)
            return CANNOT
    print(json.dumps(report.to_json(), ensure_ascii=False, indent=2) if options.json else report.text())
    return report.exit_status


def _report(options: argparse.Namespace, progress: "Progress", stop: Stop) -> "ReplayReport":
    from grpo_core.files.recorded_run import read_records
    from grpo_core.replay.report import ReplayReport
    from grpo_core.replay.steps import stretches
    from grpo_core.trainer.replay_inputs import Given, find_inputs

    run = read_records(options.records)
    number, steps = _steps(options, run)
    runs = tuple(options.run) or ((options.records,) if run.kind == "run" else ())
    given = Given(runs, tuple(options.checkpoints), tuple(options.data), options.model)
    inputs = find_inputs(run, given)
    if options.from_start:
        inputs.starts.clear()
    parts = tuple(stretches(steps, inputs.starts))
    shown = options.shown_as or str(options.records)
    report = ReplayReport(shown, run.name, number, tuple(steps), parts, withheld=run.withheld)
    report.unchecked = inputs.unchecked
    drawn = "" if number is None else f", drawn by the number {number}"
    progress.line(f"steps {', '.join(map(str, steps))}{drawn}; {sum(own.cost for own in parts)} to do:")
    for stretch in parts:
        progress.line(f"  {_origin(stretch)}: steps {stretch.start + 1} to {stretch.last}")
    for stretch in parts:
        _do(run, inputs, stretch, report, progress, stop)
    return report


def _origin(stretch: "Stretch") -> str:
    return f"from the checkpoint after step {stretch.start}" if stretch.start else "from the beginning"


def _steps(options: argparse.Namespace, run: "RecordedRun") -> tuple[int | None, list[int]]:
    """The number that draws, and the steps."""
    from grpo_core.errors import RecordsError
    from grpo_core.replay.steps import drawn_steps, new_number

    known = sorted({*run.steps, *run.leaves})
    if not known:
        raise RecordsError(f"{options.records} has no record of any step")
    if options.step:
        if options.number is not None:
            raise RecordsError("--number draws steps; leave it out where --step names them")
        if missing := [step for step in options.step if step not in known]:
            raise RecordsError(f"step {missing[0]} is not in the records, which hold steps {known[0]} to {known[-1]}")
        return None, sorted(set(options.step))
    number = new_number() if options.number is None else options.number
    return number, drawn_steps(known, options.steps or 1, name=run.name, number=number)


def _do(
    run: "RecordedRun",
    inputs: "ReplayInputs",
    stretch: "Stretch",
    report: "ReplayReport",
    progress: "Progress",
    stop: Stop,
) -> None:
    """One stretch, whose comparisons go to the report."""
    from grpo_core.distributed.ranks import Ranks
    from grpo_core.records.types import Manifest
    from grpo_core.replay.bounds import bounds_of, environment_differences
    from grpo_core.replay.compare import compare_step
    from grpo_core.trainer.replay import Replay, replay_config

    config = replay_config(inputs.config, threads=run.facts.get("platform", {}).get("threads"))

    def began(manifest: Manifest) -> None:
        report.environment = environment_differences(run.facts, manifest.model_dump(mode="json"))
        report.bounds = bounds_of(run.config) if report.environment else None

    def done(step: "ReplayedStep") -> None:
        kept = list(run.groups({step.step}))
        wanted = step.step in stretch.wanted
        report.compared.append(compare_step(run, kept, step, bounds=report.bounds, wanted=wanted))

    Replay(
        config,
        None,
        base=inputs.base,
        progress=progress,
        check=stop.raise_if_requested,
        ranks=Ranks.join(device=config.engine.device, check=stop.raise_if_requested),
        start=inputs.starts.get(stretch.start),
        last=stretch.last,
        hashed=run.checkpoints,
        cache=inputs.cache,
        began=began,
        done=done,
    ).replay()
