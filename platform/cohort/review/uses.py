"""What a judged sample becomes: a probe case of a verifier, or an item of an evaluation suite.

Each keeps a copy of the sample's text: deleting the sample's text later deletes neither.
"""

from collections.abc import Collection, Iterable
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from cohort.accounts.models import User
from cohort.audit import services as audit
from cohort.catalog.models import EvalSuiteVersion, ProbeCase, Verifier
from cohort.catalog.probe_cases import probe_case_add
from cohort.catalog.run_inputs import dataset_problems
from cohort.catalog.suites import suite_item_add
from cohort.evidence.judgements import majority
from cohort.lab.models import ChatAnswer
from cohort.review.models import Annotation, AnswerJudgement, Group, Sample, Verdict
from cohort.review.services import newest_by_person
from cohort.runs.models import Run
from cohort.runs.transitions import run_logged
from grpo_core.data.problem import Problem

DECIDED = (Verdict.RIGHT, Verdict.WRONG)


def people_say(sample: Sample) -> str:
    """What more reviewers call the sample: right, wrong or unsure; empty where nobody judged it."""
    return majority_of(newest_by_person(Annotation.objects.filter(sample=sample)).values())


def majority_of(judgements: Iterable[Annotation | AnswerJudgement]) -> str:
    verdicts = [judgement.verdict for judgement in judgements if judgement.verdict]
    return majority(verdicts) if verdicts else ""


def problem_of(group: Group) -> Problem:
    """The group's problem with every field that a reward may read, from the run's dataset; what the group itself holds
    where the run was imported, or the dataset's file is no longer here or has another problem by that id."""
    return problems_of(group.run, [group])[group.pk]


def problems_of(run: Run, groups: Collection[Group]) -> dict[int, Problem]:
    """Group id → its problem, as `problem_of`. The file is read once, until all are there."""
    problems = {group.pk: Problem(group.problem_id, group.prompt, group.answer) for group in groups}
    waiting: dict[str, list[Group]] = {}
    for group in groups:
        waiting.setdefault(group.problem_id, []).append(group)
    if run.imported:
        return problems
    try:
        for problem in dataset_problems(run.dataset):
            for group in waiting.pop(problem.id, ()):
                if problem.prompt == group.prompt:
                    problems[group.pk] = problem
            if not waiting:
                break
    except FileNotFoundError:
        return problems
    return problems


def source_of(sample: Sample) -> dict[str, int]:
    """As of ProbeCase."""
    group = sample.group
    return {"run": group.run_id, "group": group.pk, "step": group.step, "sample": sample.index + 1}


@transaction.atomic
def sample_to_probe_case(*, sample: Sample, verifier: Verifier, actor: User) -> ProbeCase:
    """From the next probe on, the verifier is held to what people call the sample. Raises ValidationError keyed by
    `verifier`, also where people do not call it right or wrong."""
    _require_text(sample)
    verdict = people_say(sample)
    if verdict not in DECIDED:
        raise ValidationError({"verifier": "Judge this sample right or wrong first: a probe case needs a verdict."})
    case = probe_case_add(
        verifier=verifier,
        actor=actor,
        problem=problem_of(sample.group),
        completion=sample.completion,
        right=verdict == Verdict.RIGHT,
        source=source_of(sample),
    )
    _noted(sample, actor, "sample_to_probe_case", {"verifier": verifier.name, "case": case.pk})
    return case


@transaction.atomic
def answer_to_probe_case(*, answer: ChatAnswer, verifier: Verifier, target: str, actor: User) -> ProbeCase:
    """As `sample_to_probe_case`, of a judged answer to the first message of a chat; `target` is the right answer that
    the verifier compares with. Raises ValidationError."""
    message = answer.message
    if message.number != 1:
        raise ValidationError("Only an answer to the first message can be a case: the others rest on what came before.")
    if message.redacted_at is not None or answer.error:
        raise ValidationError("There is no answer to keep: it failed, or its text was deleted.")
    newest = {row.by_id: row for row in answer.judgements.order_by("pk")}
    verdict = majority_of(newest.values())
    if verdict not in DECIDED:
        raise ValidationError({"verifier": "Judge this answer right or wrong first: a probe case needs a verdict."})
    chat = message.conversation
    return probe_case_add(
        verifier=verifier,
        actor=actor,
        problem=Problem(f"chat-{chat.pk}", message.text, target.strip()),
        completion=answer.text,
        right=verdict == Verdict.RIGHT,
        source={"chat": chat.pk, "message": message.number},
    )


@transaction.atomic
def sample_to_suite(
    *, sample: Sample, version: EvalSuiteVersion, target: str, reason: str, actor: User
) -> EvalSuiteVersion:
    """The sample's problem as one more item, in a new version of the suite. It is a problem that the run trained on, so
    that the suite's scores of this run, and of any that trains on it, are no longer held out on it: hence the `reason`.
    Raises ValidationError keyed by `suite`, `target` or `reason`."""
    reason = audit.reason_checked(reason.strip())
    if not reason:
        raise ValidationError({"reason": "Say why a problem that was trained on is to be an item of a held-out suite."})
    group = sample.group
    item = {"id": f"run-{group.run_id}-{group.problem_id}", "prompt": group.prompt, "target": target.strip()}
    item["source"] = f"run {group.run_id}, step {group.step}, problem {group.problem_id}"
    made = suite_item_add(version=version, actor=actor, item=item, reason=reason)
    _noted(sample, actor, "sample_to_suite", {"suite": version.suite.name, "version": made.number}, reason)
    return made


def _require_text(sample: Sample) -> None:
    if sample.redacted_at is not None:
        raise ValidationError("The text of this sample was deleted, so it cannot be used any more.")


def _noted(sample: Sample, actor: User, kind: str, data: dict[str, Any], reason: str = "") -> None:
    group = sample.group
    at = {"step": group.step, "group": group.index, "sample": sample.index}
    run_logged(run=group.run, actor=audit.who(actor), kind=kind, reason=reason, data={**at, **data})
