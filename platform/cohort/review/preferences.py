"""Preference pairs: of a group, a completion that people call right with one that they call wrong. They follow from the
judgements and need no rows of their own, until somebody makes a dataset of them."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from django.core.exceptions import ValidationError

from cohort.accounts.models import User
from cohort.catalog.models import PromptDataset
from cohort.catalog.sampled import judged_dataset_create
from cohort.review.figures import newest_annotations
from cohort.review.models import Annotation, Group, Sample, Verdict
from cohort.review.uses import DECIDED, majority_of, problems_of
from cohort.runs.models import Run
from grpo_core.config.run import RunConfig
from grpo_core.config.sample import SampleConfig
from grpo_core.data.problem import Problem
from grpo_core.errors import DataError


def preference_pairs(run: Run) -> Iterator[dict[str, Any]]:
    """Of each group of current samples every completion that people call right with every one that they call wrong, in
    TRL's preference format: prompt, chosen, rejected, as messages where the prompt is a conversation. Without samples
    whose text was deleted."""
    for group, chosen, rejected, problem in _judged_groups(run):
        prompt: Any = problem.prompt
        if problem.messages:
            prompt = [{"role": message.role, "content": message.content} for message in problem.messages]
        place = f"run {run.pk}, step {group.step}, group {group.index}"
        for right in chosen:
            for wrong in rejected:
                yield {
                    "prompt": prompt,
                    "chosen": _answer(right, problem),
                    "rejected": _answer(wrong, problem),
                    "source": f"{place}, samples {right.index} and {wrong.index}",
                }


def preferences_dataset_create(*, run: Run, actor: User) -> PromptDataset:
    """A dataset of the run's preference pairs as they are now, for a reward model: prompt or messages, chosen,
    rejected, as runs of kind `sample` write them. Pairs that are the same but for white space are left out, and
    counted. The same judgements again are the same dataset. Raises ValidationError where there is no pair, or no
    room."""
    prefill = _prefill(run)
    lines: list[bytes] = []
    equal, groups = 0, set[tuple[int, int]]()
    for group, chosen, rejected, problem in _judged_groups(run):
        given: dict[str, Any] = {"prompt": problem.prompt}
        if problem.messages:
            turns = [{"role": message.role, "content": message.content} for message in problem.messages]
            given = {"messages": turns}
        for right in chosen:
            for wrong in rejected:
                if right.completion.split() == wrong.completion.split():
                    equal += 1
                    continue
                groups.add((group.step, group.index))
                origin = {
                    "problem_id": group.problem_id,
                    "step": group.step,
                    "group": group.index,
                    "sample": right.index,
                    "rejected_sample": wrong.index,
                }
                row = given | {"chosen": prefill + right.completion, "rejected": prefill + wrong.completion}
                lines.append(json.dumps(row | {"from": origin}, ensure_ascii=False).encode() + b"\n")
    if not lines:
        also = f" {equal} pairs have equal texts, of which neither can be the better one." if equal else ""
        raise ValidationError(
            "No group of this run has a completion that people call right and another that they call wrong, so there "
            f"is no pair.{also} Judge both in one group, then make the dataset."
        )
    made = {"judgements": run.pk, "pairs": len(lines), "groups": len(groups), "equal": equal}
    try:
        return judged_dataset_create(
            project=run.project, actor=actor, run_id=run.pk, run_name=run.name, lines=lines, made=made
        )
    except DataError as error:
        raise ValidationError(str(error)) from None


def _prefill(run: Run) -> str:
    """What its answers begin with, which the model was given."""
    if run.imported:
        return ""
    config = run.parsed_config
    return config.data.prefill if isinstance(config, RunConfig | SampleConfig) else ""


def _answer(sample: Sample, problem: Problem) -> Any:
    return [{"role": "assistant", "content": sample.completion}] if problem.messages else sample.completion


def _judged_groups(run: Run) -> Iterator[tuple[Group, list[Sample], list[Sample], Problem]]:
    """(group, samples that people call right, and wrong, its problem) of groups with both, by step."""
    verdicts = pairs_by_group(newest_annotations(run))
    samples = Sample.objects.select_related("group").filter(redacted_at=None)
    rows = samples.in_bulk([pk for sides in verdicts.values() for side in sides for pk in side])
    groups = {sample.group_id: sample.group for sample in rows.values()}
    problems = problems_of(run, list(groups.values()))
    for group in sorted(groups.values(), key=lambda group: (group.step, group.index)):
        chosen, rejected = ([rows[pk] for pk in side if pk in rows] for side in verdicts[group.pk])
        yield group, chosen, rejected, problems[group.pk]


def pairs_by_group(annotations: Iterable[Annotation]) -> dict[int, tuple[list[int], list[int]]]:
    """Group id → (ids of samples that people call right, of those that they call wrong), where there are both."""
    by_sample: dict[tuple[int, int], list[Annotation]] = {}
    for annotation in annotations:
        by_sample.setdefault((annotation.sample.group_id, annotation.sample_id), []).append(annotation)
    groups: dict[int, tuple[list[int], list[int]]] = {}
    for (group, sample), rows in sorted(by_sample.items()):
        if (verdict := majority_of(rows)) in DECIDED:
            groups.setdefault(group, ([], []))[verdict == Verdict.WRONG].append(sample)
    return {group: sides for group, sides in groups.items() if all(sides)}
