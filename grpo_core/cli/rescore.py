"""`grpo rescore`: scores the samples in a run's folder again, by another reward, as the platform's re-score does.

The folder is only read. Imports what is heavy only when it runs.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.cli.eval import check_place
from grpo_core.cli.probe import device_of, read_reward
from grpo_core.errors import DataError, RunDirError
from grpo_core.runtime.signals import Stop

if TYPE_CHECKING:
    from grpo_core.config.run import RunConfig
    from grpo_core.data.problem import Problem
    from grpo_core.protocol.messages import GroupPage, GroupRescored
    from grpo_core.records.types import Group, Sample


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand `rescore`."""
    parser = commands.add_parser(
        "rescore",
        help="score a run's stored samples again by another reward",
        description="Score the samples that a run stored again, by another reward, and say how far the two agree. "
        "Nothing is trained, and the run's folder stays as it is.",
    )
    parser.add_argument("run", type=Path, metavar="RUN_DIR", help="folder that `grpo train` wrote")
    parser.add_argument(
        "--verifier", type=Path, required=True, metavar="FILE", help="the second reward, or a run's config that has it"
    )
    parser.add_argument(
        "--data", type=Path, metavar="FILE", help="the run's problems (default: its config's, from RUN_DIR)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write both rewards of each sample as JSONL")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.set_defaults(handler=_rescore)


def _rescore(options: argparse.Namespace) -> int:
    from grpo_core.lab.job import RescoreOptions
    from grpo_core.lab.rescore import PageScorer, unfailing
    from grpo_core.rewards import Rubric, Runner
    from grpo_core.rewards.base import Context
    from grpo_core.runtime.progress import Progress

    check_place(options.out, folder=False)
    config, steps = _opened(options.run)
    reward, _ = read_reward(options.verifier)
    rubric = Rubric(reward)
    problems = _problems(options, config)
    context = Context(limits=reward.limits, base=options.verifier.resolve().parent, device=device_of(rubric))
    data = str(options.data or config.data.path)
    own = RescoreOptions(
        samples=sum(len(group.samples) for path in steps for group in _groups(path, problems, data)),
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
        sink = opened.enter_context(part.open("w", encoding="utf-8")) if part else None
        progress.begin("scoring", own.samples)
        for path in steps:
            groups = _groups(path, problems, data)
            for line in _lines(config, groups, scorer.scored(_page(groups))):
                totals.add(line)
                if sink is not None:
                    sink.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
            progress.advance(totals.confusion.total(), "samples scored")
        if sink is not None and part is not None:
            sink.close()
            part.replace(options.out)
    print(json.dumps(totals.figures, ensure_ascii=False, indent=2) if options.json else "\n".join(totals.text()))
    return 0


def _opened(folder: Path) -> "tuple[RunConfig, list[Path]]":
    """The run's config, and the files of its current steps' samples, in order."""
    from grpo_core.config.run import RunConfig
    from grpo_core.files.run_folder import RunDir

    run_dir = RunDir(folder)
    if not run_dir.config_file.is_file():
        raise RunDirError(f"{folder} holds no run: there is no config.yaml in it")
    steps = sorted((folder / "samples").glob("step-*.jsonl"))
    if not steps:
        raise RunDirError(f"{folder} has no stored samples: the run kept none (traces.groups_per_step), or did no step")
    return RunConfig.from_file(run_dir.config_file), steps


def _problems(options: argparse.Namespace, config: "RunConfig") -> "dict[str, Problem]":
    from grpo_core.data.hub import find_data
    from grpo_core.data.loaders import load_problems

    data = config.data
    files = (options.data,) if options.data else find_data(data.path, data.hub, base=options.run.resolve())
    try:
        problems = load_problems(files, data.format, columns=data.columns, limit=data.limit)
    except DataError as error:
        hint = "" if options.data else ". Say where the run's problems are by --data FILE"
        raise DataError(f"{error}{hint}") from None
    return {problem.id: problem for problem in problems}


def _groups(path: Path, problems: "Mapping[str, Problem]", data: str) -> "list[Group]":
    """Of a step. Raises RunDirError for a line that is no group, and DataError where its problem has another answer."""
    from pydantic import ValidationError

    from grpo_core.records.types import ENVELOPE, Group

    groups = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            group = ENVELOPE.validate_json(line).record
        except ValidationError as error:
            raise RunDirError(f"{path}, line {number} is no record: {error.errors()[0]['msg']}") from None
        if not isinstance(group, Group):
            raise RunDirError(f"{path}, line {number} is no group of samples")
        problem = problems.get(group.problem_id)
        if problem is not None and problem.answer != group.answer:
            raise DataError(
                f"{data}: the answer of problem {group.problem_id!r} is {problem.answer!r}, and in step {group.step} "
                f"of the run it was {group.answer!r}. Give the run's own problems by --data FILE"
            )
        groups.append(group)
    return groups


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


def _lines(config: "RunConfig", groups: "list[Group]", rescored: "list[GroupRescored]") -> Iterator[dict[str, Any]]:
    """One of each sample: both rewards, and whether each calls it right."""
    from grpo_core.lab.rescore import change_of

    for group, second in zip(groups, rescored, strict=True):
        for sample, score in zip(group.samples, second.samples, strict=True):
            yield {
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


def _passed(config: "RunConfig", sample: "Sample") -> bool | None:
    """By the component of the run's reward that means right; None where the sample was masked or it cannot say."""
    if sample.mask_cause is not None or not sample.components:
        return None
    return sample.components[config.reward.success_of(sample.components)].passed


@dataclass
class Totals:
    """Of all samples so far."""

    rubric_digest: str
    confusion: Counter[tuple[bool | None, bool | None]] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    steps: list[int] = field(default_factory=list)
    """The first and the last."""

    def add(self, line: Mapping[str, Any]) -> None:
        self.confusion[line["passed"], line["second_passed"]] += 1
        self.changes[line["change"]] += 1
        if line["second_reward"] is None:
            self.errors[line["error_class"] or "verifier"] += 1
        self.steps = [*self.steps[:1], line["step"]]

    @property
    def figures(self) -> dict[str, Any]:
        """JSON-ready, with the keys of a record's `oversight.rescores`."""
        from grpo_core.stats.agreement import VERDICTS, agreement_figures

        verdicts = (True, False, None)
        confusion = [[self.confusion[first, second] for second in verdicts] for first in verdicts]
        return {
            "sha256": self.rubric_digest,
            "steps": {"first": self.steps[0], "last": self.steps[-1]},
            "samples": self.confusion.total(),
            "confusion": {
                first: dict(zip(VERDICTS, row, strict=True)) for first, row in zip(VERDICTS, confusion, strict=True)
            },
            "changes": {name: self.changes[name] for name in ("same", "lower", "higher", "unscored")},
            "errors": dict(sorted(self.errors.items())),
            **agreement_figures(confusion),
        }

    def text(self) -> Iterator[str]:
        from grpo_core.text import format_percent

        figures = self.figures
        first, last = figures["steps"].values()
        yield f"{figures['samples']:,} samples of steps {first:,} to {last:,}, second reward {self.rubric_digest[:12]}"
        yield ""
        yield f"{'':16}" + "".join(f"{'second: ' + name:>18}" for name in figures["confusion"])
        for name, row in figures["confusion"].items():
            yield f"{'first: ' + name:16}" + "".join(f"{count:>18,}" for count in row.values())
        yield ""
        if (agreement := figures["agreement"]) is None:
            yield "no sample was called right or wrong by both"
        else:
            low, high = (format_percent(agreement[name]) for name in ("low", "high"))
            share = format_percent(agreement["share"])
            yield f"agreement {share} [{low}, {high}] of {agreement['n']:,} that both call right or wrong"
            yield f"Cohen's κ {_kappa(figures['kappa'])}"
        yield "reward: " + ", ".join(f"{name} {count:,}" for name, count in figures["changes"].items())
        if self.errors:
            yield "without a second reward: " + ", ".join(f"{name} {n:,}" for name, n in figures["errors"].items())


def _kappa(kappa: Mapping[str, Any]) -> str:
    if kappa["value"] is None:
        return f"is not defined: {kappa['reason']}"
    interval = "" if kappa["low"] is None else f" [{kappa['low']:.2f}, {kappa['high']:.2f}]"
    return f"{kappa['value']:.2f}{interval}"
