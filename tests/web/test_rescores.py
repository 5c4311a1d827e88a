"""Re-scores: who may request one and of what, what its worker is given and may send, and the page with the figures.
The hand-worked run is in tests/factories/rescores.py; a real worker does one in tests/worker/test_rescores.py."""

import json
from datetime import timedelta
from typing import Any

import pytest
import zstandard
from django.core.exceptions import ValidationError
from django.db import connection
from django.db.models.functions import Now
from django.http import QueryDict
from django.test import Client
from django.test.utils import CaptureQueriesContext

from cohort.accounts.models import User
from cohort.audit.models import AuditEntry
from cohort.ingest import rescored as rescored_module
from cohort.lab.jobs import job_expire
from cohort.lab.models import LabJob
from cohort.review.filters import SampleFilter
from cohort.review.models import Rescore, RescoredSample, Sample
from cohort.review.rescores import figures_republish, figures_store, rescore_request
from cohort.runs import dispatch
from cohort.runs.models import Run
from grpo_core.errors import ConfigError
from grpo_core.protocol.messages import GroupPage
from tests.factories.rescores import NUMBER, ended_run, rescore_ended, rescored, score_pages, second
from tests.factories.runs import HOSTILE, HOSTILE_SHOWN, Maker
from tests.web.worker_calls import Caller, JobCaller, refused, taken_job

pytestmark = pytest.mark.django_db

JUDGE: dict[str, Any] = {
    "components": [
        {
            "name": "graded",
            "kind": "judge",
            "params": {
                "base_url": "https://judge.example.org/v1",
                "model": "m",
                "votes": 3,
                "temperature": 1,
                "budget_calls": 100,
            },
        }
    ]
}
PYTHON: dict[str, Any] = {
    "components": [{"name": "own", "kind": "python", "params": {"source": "def verify(sample):\n    return 1.0\n"}}]
}


@pytest.fixture
def run(maker: Maker) -> Run:
    return ended_run(maker)


@pytest.fixture
def rescore(run: Run, maker: Maker, alice: User) -> Rescore:
    return rescored(run, second(maker), alice, reason="another look")


def test_figures_against_the_hand_worked_table(rescore: Rescore) -> None:
    """κ: p_o = 5/8; chance (4·3 + 4·5) / 64 = 1/2; so (5/8 − 1/2) / (1/2) = 1/4. Wilson's interval of 5 of 8 from its
    formula, by hand."""
    figures = rescore.figures
    assert figures is not None
    assert figures["confusion"] == [[2, 2, 0], [1, 3, 0], [0, 0, 0]]
    assert figures["agreement"]["share"] == 5 / 8
    assert figures["agreement"]["low"] == pytest.approx(0.30574, abs=1e-5)
    assert figures["agreement"]["high"] == pytest.approx(0.86316, abs=1e-5)
    assert figures["kappa"]["value"] == pytest.approx(0.25)
    assert figures["changes"] == {"same": 5, "lower": 2, "higher": 1, "unscored": 0}
    assert [point["right"] for point in figures["curve"]] == [[0.5, 0.5], [1.0, 0.5], [0.0, 0.0]]
    assert [point["reward"] for point in figures["curve"]] == [[0.5, 0.5], [1.0, 0.5], [0.0, 0.0]]
    # The first group: 1, 0, 1, 0 of mean 1/2 and std 1/2, so A = ±0.5 / 0.5001. The second was 1, 1 and is 1, 0.
    assert figures["advantages"] == {"compared": 8, "flipped": 2, "lost": 0, "gained": 2, "groups_left_out": 0}
    worst = figures["parted"][0]
    assert (worst["step"], worst["index"], worst["advantage"]) == (1, 1, 1.0)
    assert worst["second"] == pytest.approx(-0.5 / 0.5001)
    assert len(figures["parted"]) == 3


def test_the_page_shows_them_and_links_the_groups(rescore: Rescore, run: Run, client: Client, alice: User) -> None:
    client.force_login(alice)
    page = client.get(f"/p/ours/runs/{run.pk}/rescores/{rescore.pk}/").content.decode()
    assert "62.5\u00a0%</b> [30.6\u00a0%, 86.3\u00a0%]" in page
    assert "κ <b>0.25</b>" in page
    assert "<b>25 %</b>" in page, "2 of 8 have the other sign"
    assert "another look" in page
    group = run.groups.get(step=1)
    assert f"/p/ours/runs/{run.pk}/groups/{group.pk}/?sample=2#sample-2" in page
    assert 'class="first" points="' in page
    listed = client.get(f"/p/ours/runs/{run.pk}/rescores/").content.decode()
    assert "62.5\u00a0%" in listed


def test_the_group_has_a_line_for_each_sample(rescore: Rescore, run: Run, client: Client, alice: User) -> None:
    client.force_login(alice)
    group = run.groups.get(step=1)
    shown = " ".join(client.get(f"/p/ours/runs/{run.pk}/groups/{group.pk}/").content.decode().split())
    assert "0 (was 1.00)" in shown
    assert "A +1.00 → \N{MINUS SIGN}1.00" in shown


@pytest.mark.parametrize(
    ("what", "completions"),
    [("differs", ["17", "3.", "so 9."]), ("lower", ["3.", "so 9."]), ("higher", ["17"]), ("unscored", [])],
)
def test_samples_are_found_by_what_a_re_score_made_of_them(
    rescore: Rescore, run: Run, what: str, completions: list[str]
) -> None:
    chosen = SampleFilter.parse({"rescore": f"{rescore.pk}:{what}"})
    assert SampleFilter.parse(QueryDict(chosen.query)) == chosen
    assert f"by re-score {rescore.pk}" in chosen.words
    assert sorted(chosen.samples(run).values_list("completion", flat=True)) == completions
    other = SampleFilter.parse({"rescore": f"{rescore.pk + 1}:{what}"})
    assert not other.samples(run).exists()


@pytest.mark.parametrize("text", ["1", "1:", "x:differs", "1:better", "-1:lower", "1" * 19 + ":lower"])
def test_nonsense_is_refused_at_its_field(text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        SampleFilter.parse({"rescore": text})
    assert list(caught.value.message_dict) == ["rescore"]


def test_the_page_takes_as_many_queries_for_more_samples(
    rescore: Rescore, maker: Maker, client: Client, alice: User
) -> None:
    client.force_login(alice)
    larger = rescored(ended_run(maker, [["17.", "17"] * 8] * 6), rescore.version, alice)
    counts = []
    for each in (rescore, larger):
        with CaptureQueriesContext(connection) as queries:
            assert client.get(f"/p/ours/runs/{each.run_id}/rescores/{each.pk}/").status_code == 200
        counts.append(len(queries))
    assert counts[0] == counts[1] <= 15


def test_what_it_takes_is_shown_before_it_is_requested(run: Run, maker: Maker, client: Client, alice: User) -> None:
    client.force_login(alice)
    judged = second(maker, JUDGE, "judge")
    address = f"/p/ours/runs/{run.pk}/rescores/"
    page = client.get(f"{address}?version={judged.pk}").content.decode()
    assert "<b>8</b> stored samples" in page
    assert "24 calls of its judge at least; its budget ends at 100 calls" in page
    assert "not probed" in page
    assert "no more than a warning" in page
    coded = second(maker, PYTHON, "python")
    assert "runs code 8 times" in client.get(f"{address}?version={coded.pk}").content.decode()
    answer = client.post(address, {"version": judged.pk, "reason": HOSTILE})
    rescore = Rescore.objects.get()
    assert answer.url == f"{address}{rescore.pk}/"
    page = client.get(answer.url).content.decode()
    assert "0 of 8 samples scored" in page
    assert HOSTILE_SHOWN in page
    assert "<script>alert" not in page
    entry = AuditEntry.objects.get(kind="rescore_requested")
    assert (entry.actor, json.loads(bytes(entry.body))["after"]["samples"]) == ("user:alice", 8)
    assert client.get(f"/p/ours/lab/jobs/{rescore.job_id}/").url == answer.url


@pytest.mark.parametrize(
    ("spec", "state", "field", "words"),
    [
        (NUMBER, "training", "", "has not ended"),
        ({"components": [{"name": "a", "kind": "exact", "params": {"column": "gone"}}]}, "", "version", "gone"),
    ],
)
def test_runs_that_cannot_be_scored_again(
    maker: Maker, alice: User, spec: dict[str, Any], state: str, field: str, words: str
) -> None:
    run = maker.run("live", state=state) if state else ended_run(maker)
    with pytest.raises(ConfigError) as caught:
        rescore_request(run=run, version=second(maker, spec), actor=alice)
    assert [(problem.path, words in problem.message) for problem in caught.value.problems] == [(field, True)]
    assert not Rescore.objects.exists()


def test_a_run_without_stored_texts_is_refused(run: Run, maker: Maker, alice: User) -> None:
    Sample.objects.update(redacted_at=Now(), completion="", salt="")
    with pytest.raises(ConfigError, match="no stored samples"):
        rescore_request(run=run, version=second(maker), actor=alice)


# ---------------------------------------------------------------------- the worker's calls


@pytest.fixture
def given(run: Run, maker: Maker, alice: User, node: Caller) -> JobCaller:
    """The re-score in the hands of a worker."""
    rescore_request(run=run, version=second(maker), actor=alice)
    return JobCaller(taken_job(node))


def page(caller: JobCaller, after: int | None = None) -> GroupPage:
    answer = caller.post(f"{caller.at}/samples", {"fence": caller.fence, "after": after})
    assert answer.status_code == 200, answer.content
    return GroupPage.model_validate_json(zstandard.decompress(answer.content))


def scores(page: GroupPage, *, value: float | None = 1.0, **more: Any) -> list[dict[str, Any]]:
    """Every sample of the page is right, or has no score."""
    return [
        {
            "group": group.group,
            "phantom": False,
            "samples": [
                {"sample": sample.sample, "value": value, "passed": value and True, **more} for sample in group.samples
            ],
        }
        for group in page.groups
    ]


def send(caller: JobCaller, groups: list[dict[str, Any]], fence: int | None = None) -> Any:
    return caller.post(f"{caller.at}/scores", {"fence": fence or caller.fence, "groups": groups})


def test_pages_are_bounded_and_go_on_where_scores_end(given: JobCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescored_module, "PAGE_SAMPLES", 5)
    first = page(given)
    assert [len(group.samples) for group in first.groups] == [4], "the second would make it six"
    assert first.groups[0].samples[0].completion == "17."
    following = page(given, first.groups[-1].group)
    assert [len(group.samples) for group in following.groups] == [2, 2]
    assert page(given, following.groups[-1].group).groups == []
    assert send(given, scores(first)).json() == {"done": 4}
    assert page(given).groups == following.groups, "another worker begins after what is stored"
    assert page(given).done == 4
    assert send(given, scores(first)).json() == {"done": 4}, "sent again, it changes nothing"
    assert send(given, scores(following)).json() == {"done": 8}
    assert RescoredSample.objects.count() == 8
    assert send(given, scores(first)).json() == {"done": 8}


def test_one_group_larger_than_a_page_is_a_page(given: JobCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescored_module, "PAGE_CHARS", 1)
    assert [len(group.samples) for group in page(given).groups] == [4]


def test_scores_of_others_are_refused_and_nothing_is_stored(given: JobCaller) -> None:
    whole = page(given)
    good = scores(whole)
    twice = [{**good[0], "samples": [good[0]["samples"][0], *good[0]["samples"]]}, *good[1:]]
    fewer = [{**good[0], "samples": good[0]["samples"][1:]}, *good[1:]]
    for bad in (good[1:], list(reversed(good)), twice, fewer):
        assert refused(send(given, bad)) == (422, "bad_scores")
    assert refused(send(given, good, fence=9)) == (409, "stale_fence")
    assert refused(given.post(f"{given.at}/samples", {"fence": 9})) == (409, "stale_fence")
    assert refused(given.post(f"{given.at}/samples", {"fence": 1, "after": 10**6})) == (422, "bad_scores")
    assert refused(send(given, [{**good[0], "samples": [{**good[0]["samples"][0], "value": 1e300}]}]))[0] == 422
    assert not RescoredSample.objects.exists()


def test_it_is_done_only_with_every_score(given: JobCaller, run: Run) -> None:
    job = Rescore.objects.get().job
    ended = rescore_ended(job).model_dump(mode="json")
    assert refused(given.finish("done", result=ended)) == (422, "bad_result")
    send(given, scores(page(given)))
    assert refused(given.finish("done", result={**ended, "rubric_digest": "0" * 64})) == (422, "bad_result")
    assert given.finish("done", result=ended).status_code == 204
    assert given.finish("done", result=ended).status_code == 204


def test_what_cannot_be_scored_has_its_reason_and_counts_for_nothing(
    given: JobCaller, run: Run, client: Client, alice: User
) -> None:
    send(given, scores(page(given), value=None, error_class="timeout", error=HOSTILE))
    rescore = Rescore.objects.get()
    assert rescore.errors["timeout"]["count"] == 8
    assert set(RescoredSample.objects.values_list("value", "passed", "error_class", "differs")) == {
        (None, None, "timeout", False)
    }
    given.finish("done", result=rescore_ended(rescore.job).model_dump(mode="json"))
    figures_store(rescore.pk)
    rescore.refresh_from_db()
    assert rescore.figures is not None
    assert rescore.figures["agreement"] is None
    assert rescore.figures["advantages"]["compared"] == 0
    assert rescore.figures["changes"]["unscored"] == 8
    client.force_login(alice)
    shown = client.get(f"/p/ours/runs/{run.pk}/rescores/{rescore.pk}/").content.decode()
    assert HOSTILE_SHOWN in shown
    assert "<script>alert" not in shown


def test_deleted_texts_are_neither_sent_nor_counted(run: Run, maker: Maker, alice: User) -> None:
    deleted = Sample.objects.filter(group__run=run, completion="so 9.")
    deleted.update(completion="", salt="", redacted_at=Now())
    rescore = rescored(run, second(maker), alice)
    assert (rescore.samples, rescore.done) == (7, 7)
    assert not RescoredSample.objects.filter(sample__redacted_at__isnull=False).exists()
    assert rescore.figures is not None
    assert rescore.figures["deleted"] == 1
    assert rescore.figures["advantages"]["groups_left_out"] == 1, "of a part of a group no advantage can be had"


def test_a_worker_that_is_lost_loses_no_scores(run: Run, maker: Maker, alice: User, monkeypatch: Any) -> None:
    monkeypatch.setattr(rescored_module, "PAGE_SAMPLES", 5)
    rescore = rescore_request(run=run, version=second(maker), actor=alice)
    for pages in (1, 1):
        job = score_pages(rescore, most=pages)
        LabJob.objects.update(lease_until=Now() - timedelta(seconds=1))
        assert job_expire(job.pk) == job.pk
        job.refresh_from_db()
        assert job.state == "waiting", "it has moved since, so it may be lost again"
    rescore.refresh_from_db()
    assert (rescore.done, rescore.begun_with) == (8, 4)


def test_figures_that_were_lost_are_requested_again(given: JobCaller, monkeypatch: Any) -> None:
    send(given, scores(page(given)))
    rescore = Rescore.objects.get()
    given.finish("done", result=rescore_ended(rescore.job).model_dump(mode="json"))
    monkeypatch.setattr(dispatch, "_published", {})
    monkeypatch.setattr(dispatch, "waiting_messages", lambda name: 0)  # of other tests there may be some
    assert figures_republish() == []
    LabJob.objects.update(finished_at=Now() - timedelta(minutes=1))
    assert figures_republish() == [rescore.pk]
    figures_store(rescore.pk)
    figures_store(rescore.pk)
    assert AuditEntry.objects.filter(kind="rescored").count() == 1
    assert figures_republish() == []
