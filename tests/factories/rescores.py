"""Runs whose samples are scored again: texts written by hand, so that each verdict is known, scored by the real reward
and stored by the calls that a worker makes."""

from collections.abc import Sequence
from typing import Any

import zstandard

from cohort.accounts.models import User
from cohort.catalog.models import VerifierVersion
from cohort.catalog.run_inputs import dataset_problems
from cohort.catalog.services import verifier_version_create
from cohort.ingest.rescored import page_of, rescore_finish, scores_store
from cohort.lab.models import LabJob
from cohort.review.models import Group, Rescore, Sample
from cohort.review.rescores import figures_store, rescore_request
from cohort.runs.models import Run
from grpo_core.config.reward import RewardConfig
from grpo_core.lab.job import RescoreOptions
from grpo_core.lab.rescore import PageScorer, RescoreEnded, unfailing
from grpo_core.protocol.messages import GroupPage, JobFinish, PageRequest, ScoresSent
from grpo_core.rewards import Rubric, Runner
from tests.factories.lab import claimed
from tests.factories.runs import Maker, add_group, put_in

NUMBER: dict[str, Any] = {"components": [{"name": "right", "kind": "numeric", "params": {"extract": "last_number"}}]}
HAND_WORKED = (["17.", "so 9.", "17", "no"], ["18.", "3."], ["no", "none"])
"""Groups of the problems 10 + 7, 11 + 7, 12 + 7. By the run's own reward what ends in a full stop is right, by NUMBER
what ends in the sum: right by both 2, by the first alone 2, by the second alone 1, by neither 3."""


def ended_run(maker: Maker, groups: Sequence[Sequence[str]] = HAND_WORKED, **settings: Any) -> Run:
    """With one group a step, whose advantages are 1 and −1 where its rewards differ."""
    run = maker.run("ended", **settings)
    attempt = maker.attempt(run, state="finished")
    for step, texts in enumerate(groups, start=1):
        rewards = [float(text.endswith(".")) for text in texts]
        advantages = [2 * reward - 1 if len(set(rewards)) > 1 else 0.0 for reward in rewards]
        group = add_group(attempt, rewards, step=step, advantages=advantages)
        Group.objects.filter(pk=group.pk).update(problem_id=f"add-{9 + step}")
        for sample, text in zip(group.samples.order_by("index"), texts, strict=True):
            Sample.objects.filter(pk=sample.pk).update(completion=text)
    put_in(run, "succeeded")
    return run


def second(maker: Maker, spec: dict[str, Any] = NUMBER, name: str = "second") -> VerifierVersion:
    return verifier_version_create(project=maker.project, actor=maker.actor, name=name, spec=spec)


def score_pages(rescore: Rescore, *, most: int | None = None) -> LabJob:
    """Claim the job and score so many pages of it, or all."""
    job = claimed(rescore.job)
    problems = {problem.id: problem for problem in dataset_problems(rescore.run.dataset)}
    rubric = unfailing(Rubric(RewardConfig.model_validate(job.spec)))
    after, pages = None, 0
    with Runner(rubric) as runner:
        scorer = PageScorer(RescoreOptions.model_validate(job.options), runner, problems, lambda: None)
        while most is None or pages < most:
            body = page_of(job=job, request=PageRequest(fence=job.fence, after=after))
            page = GroupPage.model_validate_json(zstandard.decompress(body))
            if not page.groups:
                break
            scores_store(job=job, sent=ScoresSent(fence=job.fence, groups=scorer.scored(page)))
            after, pages = page.groups[-1].group, pages + 1
    return job


def rescore_ended(job: LabJob, samples: int = 0) -> RescoreEnded:
    own = {"device": "cpu", "cost": {}, "sandbox": None, "seconds": 1.0}
    return RescoreEnded(rubric_digest=job.spec_digest, samples=samples, **own)


def rescored(run: Run, version: VerifierVersion, actor: User, **more: Any) -> Rescore:
    """All of it, with its figures."""
    rescore = rescore_request(run=run, version=version, actor=actor, **more)
    job = score_pages(rescore)
    ended = rescore_ended(job, rescore.samples).model_dump(mode="json")
    rescore_finish(job=job, finish=JobFinish(fence=job.fence, end="done", result=ended))
    figures_store(rescore.pk)
    rescore.refresh_from_db()
    return rescore
