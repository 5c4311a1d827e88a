"""`grpo rescore`: scores the samples that a run stored again, by its own reward or by another, as the platform's
re-score does.

The folder is only read. Imports what is heavy only when it runs.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.cli.eval import check_place
from grpo_core.cli.probe import device_of, read_reward
from grpo_core.errors import GrpoError, Interrupted, RecordsError
from grpo_core.runtime.signals import Stop
from grpo_core.text import printable_lines

if TYPE_CHECKING:
    from grpo_core.config.reward import RewardConfig
    from grpo_core.config.run import RunConfig
    from grpo_core.data.problem import Problem
    from grpo_core.files.recorded_run import RecordedGroup, RecordedRun
    from grpo_core.protocol.messages import GroupPage, GroupRescored
    from grpo_core.records.types import Group, Sample


EXIT_WORDS = (
    "Without --verifier, exit status 0: every stored reward is what the run's own verifier gives; 1: one is not. With "
    "--verifier 0. 2: it cannot be done, or rewards could not be made again."
)


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand `rescore`."""
    parser = commands.add_parser(
        "rescore",
        help="score a run's stored samples again, by its own reward or by another",
        description="Score the samples that a run stored again: by its own reward, which must give the stored rewards, "
        "or by another, to see what that would have paid. Nothing is trained, and what is read stays as it is.",
        epilog=EXIT_WORDS,
    )
    parser.add_argument(
        "run", type=Path, metavar="RECORDS", help="folder of the run, or folder that its card was unpacked to"
    )
    parser.add_argument("--shown-as", metavar="NAME", help="what the report calls the records (default: RECORDS)")
    parser.add_argument("--run", type=Path, dest="folder", metavar="DIR", help="folder of the run with its inputs")
    add_choices(parser)
    parser.set_defaults(handler=_rescore)


def add_choices(parser: argparse.ArgumentParser) -> None:
    """The options that `cohort rescore` has as well."""
    parser.add_argument(
        "--verifier", type=Path, metavar="FILE",
        help="another reward as YAML, or a run's config that has it, or Python with verify(sample)",
    )  # fmt: skip
    parser.add_argument(
        "--data", type=Path, metavar="FILE", help="the run's problems (default: the card's, or RECORDS')"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="with --verifier: both rewards of each sample, JSONL")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def words_of(options: argparse.Namespace) -> list[str]:
    """What `add_choices` read, as words of a command line again."""
    single = {"--verifier": options.verifier, "--data": options.data, "--out": options.out}
    given = [word for name, value in single.items() if value is not None for word in (name, str(value))]
    return [*given, *(["--json"] if options.json else [])]


def _rescore(options: argparse.Namespace) -> int:
    try:
        return _rescored(options) if options.verifier is not None else _checked(options)
    except Interrupted:
        raise
    except GrpoError as error:
        print(f"grpo: cannot rescore: {printable_lines(str(error))}", file=sys.stderr)
        return 2


def _checked(options: argparse.Namespace) -> int:
    """By the run's own reward."""
    from grpo_core.lab.rescore_check import RewardChecker
    from grpo_core.rewards.base import Context
    from grpo_core.runtime.progress import Progress

    if options.out is not None:
        raise RecordsError("--out goes with --verifier")
    run, total = _opened(options.run)
    problems, _ = _problems(options, run)
    context = Context(limits=run.config.reward.limits, base=options.run.resolve(), device="cpu")
    with ExitStack() as opened:
        stop = opened.enter_context(Stop())
        progress = opened.enter_context(closing(Progress(out=sys.stderr)))
        checker = opened.enter_context(closing(RewardChecker(run.config, problems, context, stop.raise_if_requested)))
        result = checker.result
        progress.begin("scoring", total)
        for groups in _by_step(run):
            checker.add(groups)
            progress.advance(result.samples, "samples scored")
    if run.leaves:
        result.not_kept = sum(map(len, run.leaves.values())) - result.samples - result.deleted
    shown = options.shown_as or str(options.run)
    if options.json:
        print(json.dumps({"records": shown, "name": run.name, **result.to_json()}, ensure_ascii=False, indent=2))
    else:
        print(result.text(shown_as=shown))
    return result.exit_status


def _rescored(options: argparse.Namespace) -> int:
    """By another reward."""
    from grpo_core.files.disk import raise_when_full
    from grpo_core.lab.job import RescoreOptions
    from grpo_core.lab.rescore import PageScorer, unfailing
    from grpo_core.lab.rescore_totals import Totals
    from grpo_core.rewards import Rubric, Runner
    from grpo_core.rewards.base import Context
    from grpo_core.runtime.progress import Progress

    check_place(options.out, folder=False)
    run, total = _opened(options.run)
    config = run.config
    rubric = Rubric(_second(options.verifier))
    problems, data = _problems(options, run)
    context = Context(limits=rubric.config.limits, base=options.verifier.resolve().parent, device=device_of(rubric))
    own = RescoreOptions(
        samples=total,
        algorithm=config.algorithm,
        max_completion_tokens=config.sampling.max_completion_tokens,
        prefill=config.data.prefill,
    )
    totals = Totals(rubric.digest)
    with ExitStack() as opened:
        stop = opened.enter_context(Stop())
        progress = opened.enter_context(closing(Progress(out=sys.stderr)))
        runner = opened.enter_context(Runner(unfailing(rubric), context))
        scorer = PageScorer(own, runner, problems, stop.raise_if_requested)
        part = options.out.with_name(f"{options.out.name}.part") if options.out else None
        if part is not None:
            opened.callback(part.unlink, missing_ok=True)
            opened.enter_context(raise_when_full(part.parent, str(options.out)))
        sink = opened.enter_context(part.open("w", encoding="utf-8")) if part else None
        progress.begin("scoring", total)
        for recorded in _by_step(run):
            groups = [_same_answer(own.group, problems, data) for own in recorded]
            for lines in _by_group(config, groups, scorer.scored(_page(groups))):
                totals.add_group(lines)
                if sink is not None:
                    sink.writelines(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
            progress.advance(totals.confusion.total(), "samples scored")
        if sink is not None and part is not None:
            sink.close()
            part.replace(options.out)
    print(json.dumps(totals.figures, ensure_ascii=False, indent=2) if options.json else "\n".join(totals.text()))
    return 0


def _second(path: Path) -> "RewardConfig":
    """A file of Python is the source of the kind `python`."""
    from grpo_core.config.reward import RewardConfig

    if path.suffix != ".py":
        return read_reward(path)[0]
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordsError(f"cannot read {path}: {error}") from None
    component = {"name": "python", "kind": "python", "params": {"source": source}}
    return RewardConfig.model_validate({"components": [component]})


def _opened(folder: Path) -> "tuple[RecordedRun, int]":
    """The run, and how many samples of it are kept."""
    from grpo_core.files.recorded_run import read_records

    run = read_records(folder)
    total = sum(len(own.group.samples) for own in run.groups())
    if not total:
        why = "the run kept none (traces.groups_per_step), or did no step"
        if run.kind == "card" and not run.kept:
            why = "traces are in the card for authority and in the internal one"
        raise RecordsError(f"{folder} has no stored samples: {why}")
    return run, total


def _by_step(run: "RecordedRun") -> "Iterator[list[RecordedGroup]]":
    for _, groups in groupby(run.groups(), key=lambda own: own.group.step):
        yield list(groups)


def _problems(options: argparse.Namespace, run: "RecordedRun") -> "tuple[Mapping[str, Problem], str]":
    """By id, and where they are from: --data, the card's own, or the run's folder."""
    from grpo_core.data.hub import find_data
    from grpo_core.data.loaders import load_problems
    from grpo_core.data.recorded import check_files, read_problems

    data = run.config.data
    if options.data is None and (own := read_problems(options.run)) is not None:
        return own, str(options.run)
    given = [options.run, *([options.folder] if options.folder else [])]
    bases = [place.resolve() for folder in given for place in (*sorted(folder.glob("attempt-*")), folder)]
    choices = [(options.data,)] if options.data else [find_data(data.path, data.hub, base=base) for base in bases]
    files = next((each for each in choices if all(path.is_file() for path in each)), choices[0])
    if not all(path.is_file() for path in files):
        raise RecordsError(f"the run's problems are not at {files[0]}. Say where they are by --data FILE")
    check_files(files, run.facts)
    problems = load_problems(files, data.format, columns=data.columns, limit=data.limit)
    return {problem.id: problem for problem in problems}, str(files[0])


def _same_answer(group: "Group", problems: "Mapping[str, Problem]", data: str) -> "Group":
    """The group. Raises RecordsError where its problem has another answer now."""
    problem = problems.get(group.problem_id)
    if problem is not None and problem.answer != group.answer:
        raise RecordsError(
            f"{data}: the answer of problem {group.problem_id!r} is {problem.answer!r}, and in step {group.step} of "
            f"the run it was {group.answer!r}. Give the run's own problems by --data FILE"
        )
    return group


def _page(groups: "list[Group]") -> "GroupPage":
    """As the platform would send them; a group's id is its place in the step, a sample's its index."""
    from grpo_core.protocol.messages import GroupPage, StoredGroup, StoredSample

    return GroupPage(
        groups=[
            StoredGroup(
                group=number,
                problem_id=group.problem_id,
                prompt=group.prompt,
                answer=group.answer,
                samples=[
                    StoredSample(sample=sample.index, completion=sample.completion, tokens=sample.tokens)
                    for sample in group.samples
                ],
            )
            for number, group in enumerate(groups)
        ],
        done=0,
    )


def _by_group(
    config: "RunConfig", groups: "list[Group]", rescored: "list[GroupRescored]"
) -> Iterator[list[dict[str, Any]]]:
    """A line of each sample: both rewards, and whether each calls it right."""
    from grpo_core.lab.rescore import change_of

    for group, second in zip(groups, rescored, strict=True):
        yield [
            {
                "step": group.step,
                "group": group.index,
                "sample": sample.index,
                "problem_id": group.problem_id,
                "reward": sample.reward,
                "passed": _passed(config, sample),
                "second_reward": score.value,
                "second_passed": score.passed,
                "change": change_of(sample.reward, score.value),
                "error_class": score.error_class,
                "error": score.error,
            }
            for sample, score in zip(group.samples, second.samples, strict=True)
        ]


def _passed(config: "RunConfig", sample: "Sample") -> bool | None:
    """By the component of the run's reward that means right; None where the sample was masked or it cannot say."""
    if sample.mask_cause is not None or not sample.components:
        return None
    return sample.components[config.reward.success_of(sample.components)].passed
