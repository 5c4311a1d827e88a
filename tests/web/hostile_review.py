"""A run whose samples, problems, tokens, judgements, labels, queues and re-scores hold these texts, and the pages that
show them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from urllib.parse import urlencode

from django.core.exceptions import ValidationError
from django.urls import reverse

from cohort.accounts.models import User
from cohort.catalog.models import EvalSuiteVersion, Verifier
from cohort.catalog.services import verifier_version_create
from cohort.lab.models import LabJob
from cohort.review.filters import READY, SampleFilter
from cohort.review.labels import FREE, MOST_OWN
from cohort.review.models import Annotation, Group, Rescore, ReviewLabel, ReviewQueue, Sample
from cohort.review.pairs import pair_next, pair_vote
from cohort.review.problems import key_of
from cohort.review.queues import disagreements_queue, item_judge, item_next, queue_create
from cohort.review.services import sample_judge
from cohort.review.uses import sample_to_probe_case, sample_to_suite
from cohort.review.waiting import unblind
from cohort.runs.models import Run, SavedView
from grpo_core.lab.job import MAX_TEXT_CHARS
from tests.factories.lab import lab_node, sampled
from tests.factories.rescores import NUMBER, ended_run, rescored
from tests.factories.runs import Maker, add_group
from tests.factories.suites import add_suite
from tests.factories.token_rows import columns
from tests.factories.tokens import stored_sample
from tests.web.hostile_pages import PER_GROUP, add_texts

BUILT_IN = ("false_positive", "reward_hack")


@dataclass
class Reviewed:
    """Each text is in each column that a model or a person writes, as long as it fits."""

    run: Run
    rescored: Rescore
    texts: list[str]
    groups: list[Group]
    problems: list[Group]
    tokens: list[Sample]
    queues: list[ReviewQueue]
    job: LabJob
    suite: EvalSuiteVersion
    actor: User

    @property
    def address(self) -> str:
        return f"runs/{self.run.pk}"


def reviewed(maker: Maker, texts: list[str], people: list[User]) -> Reviewed:
    run = maker.run("reviewed", state="training", sampling={"group_size": PER_GROUP, "prompts_per_step": 70})
    attempt, parts = maker.attempt(run), [texts[at : at + PER_GROUP] for at in range(0, len(texts), PER_GROUP)]
    groups = [add_texts(attempt, at, part) for at, part in enumerate(parts)]
    problems = []
    for step in (2, 3):
        for at, text in enumerate(texts):
            completion = f"{text[:1000]}{step}"
            problem = {"problem_id": text[:200], "prompt": text[:2000], "answer": text[:500]}
            problems.append(add_group(attempt, [1.0, 0.0], step=step, index=at, completion=completion, **problem))
    tokens = [
        stored_sample(maker, run, columns([text[:100] for text in part]), step=4 + at, index=at)
        for at, part in enumerate(parts)
    ]
    labels = _labels(maker, texts)
    _judged(groups, texts, people, labels)
    suite = _used(maker, groups, texts)
    queues = _queues(run, texts, maker.actor, people)
    _saved(maker, texts)
    Run.objects.filter(pk=run.pk).update(name="".join(text[:8] for text in texts)[:120])
    run.refresh_from_db()
    return Reviewed(
        run,
        _rescored(maker, parts),
        texts,
        groups,
        problems,
        tokens,
        queues,
        _lab(maker, texts),
        suite,
        maker.actor,
    )


def _labels(maker: Maker, texts: list[str]) -> list[str]:
    """Keys of labels with these words. The form takes only what has a letter or a digit; the page shows any."""
    known = ReviewLabel.objects.filter(project=maker.project)
    known.update(removed_at="2026-11-28T00:00Z")
    letters = dict(enumerate(FREE[:MOST_OWN]))
    rows = [
        ReviewLabel(
            project=maker.project,
            key=f"own_{known.count()}_{at}",
            letter=letters.get(at, "z"),
            word=text[:40],
            created_by=maker.actor,
            removed_at=None if at in letters else "2026-11-28T00:00Z",
        )
        for at, text in enumerate(texts)
    ]
    return [row.key for row in ReviewLabel.objects.bulk_create(rows)]


def _judged(groups: list[Group], texts: list[str], people: list[User], labels: list[str]) -> None:
    samples = [sample for group in groups for sample in group.samples.order_by("index")]
    for at, (sample, text, label) in enumerate(zip(samples, texts, labels, strict=True)):
        for number, person in enumerate(people):
            verdict = "right" if at % 3 else "wrong"
            row = sample_judge(sample=sample, actor=person, verdict=verdict, note=text[:2000], toggle=BUILT_IN[number])
            assert row is not None
            Annotation.objects.create(
                sample=sample, by=person, verdict=verdict, note=text[:2000], labels=[*row.labels, label]
            )


def _queues(run: Run, texts: list[str], actor: User, people: list[User]) -> list[ReviewQueue]:
    """All samples of the first step, blind and not, of which two people judged the first; and a queue for each text,
    without items, for the pages that list queues by name."""
    first = SampleFilter(step_max=1)
    queues = [
        queue_create(run=run, actor=actor, name="all", samples=first, size=60, blind=blind, reviewers=2)
        for blind in (True, False)
    ]
    for queue in queues:
        for number, person in enumerate(people):
            for at in range(6):
                item = item_next(queue=queue, actor=person)
                assert item is not None
                verdict = "right" if (at + number) % 2 else "wrong"
                item_judge(item=item, actor=person, verdict=verdict, note=texts[at * 9][:2000])
    for person in people:
        unblind(queue=queues[0], actor=person)  # else the run's samples are closed to them
    differing = list(queues[1].items.filter(number__lte=6))
    queues.append(disagreements_queue(queue=queues[1], actor=actor, differing=differing))
    queues.append(queue_create(run=run, actor=actor, name="named", samples=first, size=1, blind=False))
    for queue, text in zip(queues, texts, strict=False):
        queue.name, queue.query = text[:120], _search(text[:100])
        queue.save(update_fields=["name", "query"])
    like = {field: getattr(queues[-1], field) for field in ("project", "run", "order", "blind", "reviewers")}
    ReviewQueue.objects.bulk_create(
        ReviewQueue(**like, name=text[:120], query=_search(text[:100]), created_by=actor) for text in texts
    )
    return queues


def _search(text: str) -> str:
    """The query of a filter by the text; empty where none can be made of it."""
    try:
        return SampleFilter.parse({"text": text}).query
    except ValidationError:
        return ""


def _used(maker: Maker, groups: list[Group], texts: list[str]) -> EvalSuiteVersion:
    """Samples as probe cases of the run's reward, and two as items of a suite."""
    version = add_suite(maker.project, maker.actor, f"run-{groups[0].run_id}")
    for group in groups:
        for sample in group.samples.select_related("group__run__project", "group__run__dataset").order_by("index"):
            if len(sample.completion) <= MAX_TEXT_CHARS:
                sample_to_probe_case(sample=sample, verifier=maker.verifier_version.verifier, actor=maker.actor)
    for at, group in enumerate(groups[:2]):
        sample, text = group.samples.select_related("group__run__project").get(index=14), texts[at * PER_GROUP]
        version = sample_to_suite(sample=sample, version=version, target=text, reason=text, actor=maker.actor)
    return version


def _saved(maker: Maker, texts: list[str]) -> None:
    SavedView.objects.filter(project=maker.project).delete()
    for page in SavedView.Page.values:
        views = [
            SavedView(
                project=maker.project,
                owner=maker.actor,
                page=page,
                name=f"{text[:58]}{at}",
                query=urlencode({"q" if page == "runs" else "text": text[:100]}),
                shared=True,
            )
            for at, text in enumerate(texts)
        ]
        SavedView.objects.bulk_create(views)


def _rescored(maker: Maker, parts: list[list[str]]) -> Rescore:
    run = ended_run(maker, parts)
    version = verifier_version_create(project=maker.project, actor=maker.actor, name=f"second {run.pk}", spec=NUMBER)
    rescore = rescored(run, version, maker.actor)
    joined = "\n".join(text[:1000] for part in parts for text in part)
    errors = {f"class {at}": {"count": 1, "example": text[:500]} for at, text in enumerate(chain(*parts))}
    Rescore.objects.filter(pk=rescore.pk).update(reason=joined[:2000], errors=errors)
    Verifier.objects.filter(pk=version.verifier_id).update(
        name="".join(text[:8] for part in parts for text in part)[:120]
    )
    rescore.refresh_from_db()
    return rescore


def _lab(maker: Maker, texts: list[str]) -> LabJob:
    """A preview whose samples, errors and prints are the texts."""
    lab_node()
    job = sampled(
        maker.verifier_version,
        maker.actor,
        maker.dataset,
        maker.base_model,
        groups=["rwxe" * (PER_GROUP // 4 + 1)] * (len(texts) // PER_GROUP),
    )
    result = job.result
    for sample, text in zip(result["samples"], texts, strict=False):
        sample |= dict.fromkeys(("prompt", "answer", "completion", "prompted", "problem_id"), text[:5000])
        for component in sample["components"].values():
            component |= {"detail": text[:500], "printed": text[:500]}
    job.save()
    return job


PLAIN = ("step_max=1", "facets=1", urlencode({"text": ">"}))
"""Queries that show what a page of samples has: rows, counts, and a refusal."""


def _queries(field: str, texts: list[str]) -> list[str]:
    return [urlencode({field: text[:200]}) for text in texts]


def _pairs(on: Reviewed) -> Iterator[str]:
    """One pair after the other, each voted on after it was shown."""
    for group in on.groups:
        for _ in range(8):
            pair = pair_next(group=group, actor=on.actor)
            if pair is None:
                break
            yield f"{on.address}/groups/{group.pk}/pairs/"
            pair_vote(group=group, actor=on.actor, left=pair.left.index, right=pair.right.index, choice="left")


def _samples(on: Reviewed, *queries: str) -> Iterator[str]:
    return (f"{on.address}/samples/?{query}" for query in queries)


REVIEW_PAGES: dict[str, Callable[[Reviewed], Iterator[str]]] = {
    "samples": lambda on: _samples(on, "", "facets=1", "step_max=1", "step_max=1&sort=tokens", "step_min=4"),
    "ready-made filters": lambda on: _samples(on, *(ready.query for ready in READY)),
    "samples of a search": lambda on: _samples(on, *PLAIN, *_queries("text", on.texts[::2])),
    "samples of a problem": lambda on: _samples(on, *PLAIN, *_queries("problem", on.texts[1::2])),
    "scatter": lambda on: iter([f"{on.address}/samples/scatter/", f"{on.address}/samples/scatter/?step_max=1"]),
    "tokens": lambda on: (
        f"{on.address}/groups/{sample.group_id}/samples/{sample.index}/?view={view}"
        for sample in on.tokens
        for view in ("", "table")
    ),
    "problems": lambda on: (
        f"{on.address}/problems/?sort={sort}&page={page}" for sort in ("id", "change") for page in (1, 2)
    ),
    "problem": lambda on: (
        reverse("run_problem", args=["ours", on.run.pk, key_of(group)]) for group in on.problems[: len(on.texts)]
    ),
    "queues": lambda on: iter(["queues/", "queues/?page=2"]),
    "new queue": lambda on: (
        f"{on.address}/queues/new/?{query}"
        for query in (*_queries("text", [">"]), "step_max=1", *_queries("text", on.texts[::3]), "step_max=1")
    ),
    "queue": lambda on: (f"queues/{queue.pk}/" for queue in on.queues),
    "items of queues": lambda on: (
        f"queues/{queue.pk}/{item.number}/" for queue in on.queues for item in queue.items.order_by("number")
    ),
    "pairs": _pairs,
    "review": lambda on: iter([f"{on.address}/review/"]),
    "use": lambda on: (
        f"{on.address}/groups/{group.pk}/samples/{index}/use/" for group in on.groups for index in range(PER_GROUP)
    ),
    "group with judgements": lambda on: (f"{on.address}/groups/{group.pk}/" for group in on.groups),
    "re-scores": lambda on: iter([f"runs/{on.rescored.run_id}/rescores/"]),
    "re-score": lambda on: iter([f"runs/{on.rescored.run_id}/rescores/{on.rescored.pk}/"]),
    "samples by re-score": lambda on: (
        f"runs/{on.rescored.run_id}/samples/?rescore={on.rescored.pk}:{what}"
        for what in ("differs", "lower", "higher", "unscored")
    ),
    "preview of the lab": lambda on: (f"lab/jobs/{on.job.pk}/groups/{at}/" for at in range(len(on.groups))),
    "job of the lab": lambda on: iter([f"lab/jobs/{on.job.pk}/"]),
    "probe cases": lambda on: iter([f"rewards/{on.run.verifier_version.verifier_id}/"]),
    "suite": lambda on: iter([f"suites/{on.suite.suite_id}/"]),
    "runs": lambda on: iter(["runs/", ""]),
    "audit": lambda on: iter(["audit/"]),
}
"""What shows samples to reviewers → addresses below the project's."""
