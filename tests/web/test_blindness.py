"""While a person is to judge samples of a run blind, no page, file or API answer of the run shows what the verifier or
others think of a sample. Every address below a run is asked; its record, which is a document, and checkpoints apart."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import URLResolver, get_resolver

from cohort.accounts.api_tokens import api_token_create
from cohort.accounts.models import User
from cohort.review.filters import SampleFilter
from cohort.review.models import Group, ReviewQueue, Sample
from cohort.review.problems import key_of
from cohort.review.queues import item_judge, queue_create
from cohort.review.services import sample_judge
from cohort.runs.models import Run
from tests.factories.rescores import ended_run, rescored, second
from tests.factories.runs import Maker

pytestmark = pytest.mark.django_db

RUN = "p/<slug:slug>/runs/<int:run_id>/"
API = "api/v1/projects/<slug>/runs/<int:run_id>/samples"
CLOSED = {
    *("run_groups", "group_detail", "sample_tokens", "sample_use", "sample_proof", "run_samples", "samples_export"),
    *("run_scatter", "run_problems", "run_problem", "run_rescores", "run_rescore", "run_rescore_live", "run_review"),
    *("preferences_download", "run_compare_answers", "api"),
}
OVERVIEW = {"run_detail", "run_live"}
"""Stay open, without their newest groups."""
SECRETS = ("0.43", "the verifier's word", "rita's note")


def routes(resolver: URLResolver, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(name, route) of what lies below a run."""
    for pattern in resolver.url_patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from routes(pattern, route)
        elif route.startswith((RUN, API)) and not re.search("/record/|checkpoint_id|chart_id", route):
            yield str(pattern.name), route


@pytest.fixture
def run(maker: Maker, rita: User) -> Run:
    run = ended_run(maker)
    samples = list(Sample.objects.filter(group__run=run).order_by("pk"))
    for sample in samples:
        sample.reward = 0.4321
        sample.components["answer"]["detail"] = "the verifier's word"
    Sample.objects.bulk_update(samples, ["reward", "components"])
    Group.objects.filter(run=run).update(reward_mean=0.4321)
    rescored(run, second(maker), maker.actor)
    sample_judge(sample=samples[0], actor=rita, verdict="wrong", note="rita's note")
    return run


@pytest.fixture
def queue(run: Run, alice: User) -> ReviewQueue:
    return queue_create(run=run, actor=alice, name="sums", samples=SampleFilter(), size=3)


def answers(client: Client, run: Run, token: str) -> dict[str, tuple[int, str]]:
    """Name of each address → (status, all that was sent)."""
    group = Group.objects.filter(run=run).order_by("pk")[0]
    ids: dict[str, Any] = {"slug": "ours", "run_id": run.pk, "group_id": group.pk, "index": 0, "key": key_of(group)}
    ids["rescore_id"] = run.rescores.get().pk
    sent = {}
    for name, route in routes(get_resolver()):
        address = "/" + re.sub(r"<(?:\w+:)?(\w+)>", lambda match: str(ids[match[1]]), route)
        query = {"format": "jsonl"} if name == "samples_export" else {}
        reply = client.get(address, query, headers={"Authorization": f"Bearer {token}"} if route == API else {})
        text = b"".join(reply.streaming_content) if reply.streaming else reply.content
        sent["api" if route == API else name] = reply.status_code, text.decode()
    compared = client.get(f"/p/ours/runs/compare/answers/?run={run.pk}")
    return sent | {"run_compare_answers": (compared.status_code, compared.content.decode())}


def telling(sent: dict[str, tuple[int, str]]) -> set[str]:
    """Names of the answers that hold a secret."""
    return {name for name, (_, text) in sent.items() if any(secret in text for secret in SECRETS)}


def closed(sent: dict[str, tuple[int, str]]) -> set[str]:
    return {name for name, (status, _) in sent.items() if status == 403}


def test_what_shows_a_run_s_samples_is_closed_until_they_are_judged(
    run: Run, queue: ReviewQueue, admin: Client, alice: User
) -> None:
    _, token = api_token_create(user=alice, name="ci", scope="read")
    before = answers(admin, run, token)
    assert (closed(before), telling(before)) == (CLOSED, set())
    for item in queue.items.all():
        item_judge(item=item, actor=alice, verdict="right")
    after = answers(admin, run, token)
    assert closed(after) == set()
    assert telling(after) <= CLOSED | OVERVIEW
    assert telling(after) >= {"group_detail", "run_groups", "run_samples", "samples_export", "api", "run_detail"}
