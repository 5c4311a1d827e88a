"""Review queues: what they are made of, who is given which sample, what a blind one hides, and the figures of two."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import connection, connections
from django.test import Client
from django.test.utils import CaptureQueriesContext

from cohort.accounts.models import User
from cohort.audit.models import AuditEntry
from cohort.review.filters import SampleFilter
from cohort.review.informative import Candidate, by_information
from cohort.review.labels import label_add
from cohort.review.models import Annotation, Group, ReviewClaim, ReviewItem, ReviewQueue
from cohort.review.queue_figures import differing, figures_of, own_queues, paces
from cohort.review.queues import disagreements_queue, item_judge, item_next, item_undo, queue_create
from cohort.review.services import sample_judge
from cohort.review.waiting import blind_queues, waiting_for
from cohort.runs.models import Run
from tests.factories.runs import HOSTILE, Maker, add_group
from tests.web.pages import html

pytestmark = pytest.mark.django_db
QueueFor = Callable[..., ReviewQueue]
PART = {"HX-Request": "true"}


@pytest.fixture
def run(maker: Maker) -> Run:
    return maker.run("adder", state="training")


@pytest.fixture
def groups(maker: Maker, run: Run) -> list[Group]:
    """Of two problems; the values are such that a search of the HTML finds them nowhere else."""
    attempt = maker.attempt(run)
    first = add_group(attempt, [1.0, 0.4321], advantages=[1.2345, -1.2345], detail="the verifier's word", index=0)
    return [first, add_group(attempt, [0.4321, 1.0], advantages=[-0.5, 0.5], index=1)]


@pytest.fixture
def queue_for(run: Run, groups: list[Group], alice: User) -> QueueFor:
    def make(**settings: Any) -> ReviewQueue:
        chosen = {"name": "sums", "samples": SampleFilter(), "size": 10, **settings}
        return queue_create(run=run, actor=alice, **chosen)

    return make


def samples_of(queue: ReviewQueue) -> list[tuple[int, int]]:
    return list(queue.items.order_by("number").values_list("sample__group__index", "sample__index"))


def test_a_queue_holds_what_the_filter_fits_in_its_order(queue_for: QueueFor) -> None:
    by_reward = SampleFilter.parse({"sort": "reward", "reward_max": "0.9"})
    assert samples_of(queue_for(samples=by_reward, order="filter")) == [(0, 1), (1, 0)]
    assert len(samples_of(queue_for(size=3, order="random", seed=1))) == 3
    assert samples_of(queue_for(order="random", seed=7)) == samples_of(queue_for(order="random", seed=7))
    informative = samples_of(queue_for(order="informative"))
    assert [group for group, _ in informative] == [0, 1, 0, 1], "one of each problem before a second"
    entry = AuditEntry.objects.filter(kind="review_queue_made").order_by("pk")[0]
    assert entry.project == "ours"


def test_information_puts_disputes_first_and_spreads_problems() -> None:
    candidates = [
        Candidate(1, "a", False, 0.9),
        Candidate(2, "a", False, 0.8),
        Candidate(3, "b", False, 0.1),
        Candidate(4, "a", True, 0.0),
        Candidate(5, "c", False, 0.5),
        Candidate(6, "c", False, 0.5),
    ]
    assert by_information(candidates) == [4, 1, 5, 3, 2, 6]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"size": 0}, "size"),
        ({"size": 2001}, "size"),
        ({"order": "best"}, "order"),
        ({"reviewers": 3}, "reviewers"),
        ({"seed": -1}, "seed"),
        ({"name": " "}, "name"),
        ({"samples": SampleFilter.parse({"step_min": "99"})}, "size"),
    ],
)
def test_a_queue_that_cannot_be_is_refused(queue_for: QueueFor, settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        queue_for(**settings)
    assert [*caught.value.message_dict] == [field]
    assert not ReviewQueue.objects.exists()


def test_only_reviewers_are_assigned_and_others_are_kept_out(
    queue_for: QueueFor, alice: User, rita: User, bob: User, reviewer: Client, admin: Client
) -> None:
    for assignees, reviewers in (([bob], 1), ([rita], 2)):
        with pytest.raises(ValidationError) as caught:
            queue_for(assignees=assignees, reviewers=reviewers)
        assert [*caught.value.message_dict] == ["assignees"]
    queue = queue_for(assignees=[rita])
    with pytest.raises(PermissionDenied):
        item_next(queue=queue, actor=alice)
    assert admin.get(f"/p/ours/queues/{queue.pk}/1/").status_code == 403
    assert [(own.pk, waiting) for own, waiting in own_queues(queue.project, rita)] == [(queue.pk, 4)]
    assert own_queues(queue.project, alice) == []
    assert "await you in sums" in " ".join(html(reviewer.get("/p/ours/")).split())


def test_each_gets_another_sample_and_resumes_with_their_own(queue_for: QueueFor, alice: User, rita: User) -> None:
    queue = queue_for(blind=False)
    first, second = item_next(queue=queue, actor=alice), item_next(queue=queue, actor=rita)
    assert first is not None
    assert second is not None
    assert (first.number, second.number) == (1, 2)
    assert item_next(queue=queue, actor=alice) == first
    item_judge(item=first, actor=alice, verdict="right")
    assert item_next(queue=queue, actor=alice).number == 3  # type: ignore[union-attr]
    with connection.cursor() as cursor:  # as when nobody came back
        cursor.execute("UPDATE review_reviewclaim SET expires_at = now() - interval '1 second'")
    assert item_next(queue=queue, actor=alice) == second
    item_judge(item=second, actor=alice, verdict="wrong")
    with pytest.raises(ValidationError):
        item_judge(item=second, actor=rita, verdict="right")
    assert waiting_for(rita, [queue]) == {queue.pk: 2}


@pytest.mark.django_db(transaction=True)
def test_two_at_once_get_two_samples(queue_for: QueueFor, alice: User, rita: User) -> None:
    """Two connections; each round begins at the same moment and no sample is given twice."""
    queue, at_once, given = queue_for(), threading.Barrier(2), []

    def take(actor: User) -> None:
        for _ in range(2):
            at_once.wait()
            item = item_next(queue=queue, actor=actor)
            assert item is not None
            given.append(item.number)
            at_once.wait()
            item_judge(item=item, actor=actor, verdict="right")
        connections.close_all()

    threads = [threading.Thread(target=take, args=[actor]) for actor in (alice, rita)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given) == [1, 2, 3, 4]
    assert ReviewQueue.objects.get().done_at is not None


def test_pace_is_from_shown_to_judged_and_undo_opens_again(queue_for: QueueFor, alice: User) -> None:
    queue = queue_for(size=2)
    for seconds in (10, 30):
        item = item_next(queue=queue, actor=alice)
        assert item is not None
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE review_reviewclaim SET shown_at = statement_timestamp() - make_interval(secs => %s)", [seconds]
            )
        item_judge(item=item, actor=alice, note="a note is no judgement")
        item_judge(item=item, actor=alice, verdict="right")
    [pace] = paces([queue])[queue.pk]
    assert (pace.username, pace.judged) == ("alice", 2)
    assert pace.seconds == pytest.approx(20, abs=2)
    assert pace.per_minute == pytest.approx(3, abs=0.3)
    queue.refresh_from_db()
    assert queue.done_at is not None
    item_undo(item=item, actor=alice)
    queue.refresh_from_db()
    assert (queue.done_at, figures_of(queue).judged, item_next(queue=queue, actor=alice)) == (None, 1, item)
    assert list(Annotation.objects.order_by("pk").values_list("seconds", flat=True))[::2] == [None, None, None]


def test_a_queue_begins_with_nothing_whatever_was_thought_before(queue_for: QueueFor, alice: User) -> None:
    queue = queue_for(blind=False)
    item = queue.items.get(number=1)
    sample_judge(sample=item.sample, actor=alice, verdict="right", note="early")
    assert waiting_for(alice, [queue]) == {queue.pk: 4}
    item_judge(item=item, actor=alice, verdict="right")
    newest = Annotation.objects.order_by("-pk")[0]
    assert (newest.queue, newest.verdict, newest.note) == (queue, "right", "")


SECRETS = ("0.4321", "1.2345", "1.23", "verifier's word", "is-right", "is-wrong", "✓", "✕", "rita's note", "rita:", "κ")


def shown(response: Any) -> list[str]:
    text = html(response) + repr(sorted(response.headers.items()))
    return [secret for secret in SECRETS if secret in text]


def test_a_blind_queue_shows_no_verifier_and_nobody_else(
    queue_for: QueueFor, admin: Client, alice: User, rita: User, groups: list[Group]
) -> None:
    queue, open_queue = queue_for(reviewers=2, size=4), queue_for(blind=False, size=4)
    for item in queue.items.all():
        item_judge(item=item, actor=rita, verdict="wrong", note="rita's note")
    group = groups[0]
    page = f"/p/ours/runs/{group.run_id}/groups/{group.pk}/"
    assert shown(admin.get(f"/p/ours/queues/{queue.pk}/1/")) == []
    assert shown(admin.get(f"/p/ours/queues/{open_queue.pk}/1/")) == [], "the other queue of the run hides it too"
    reply = admin.post(f"{page}samples/0/judge/", {"note": "mine"}, headers=PART)
    assert (reply.status_code, shown(reply)) == (403, [])
    for sent in ({"note": "mine"}, {"toggle": "unsafe"}, {"verdict": "perhaps"}, {"undo": "1"}, {"verdict": "right"}):
        answer = admin.post(f"/p/ours/queues/{queue.pk}/1/judge/", sent, headers=PART)
        assert shown(answer) == []
    assert "2 of 4" in html(answer)
    assert answer.headers["HX-Push-Url"] == f"/p/ours/queues/{queue.pk}/2/"
    detail = html(admin.get(f"/p/ours/queues/{queue.pk}/"))
    assert ("95 %" in detail, "Shown once" in detail) == (False, True)
    for number in (2, 3, 4):
        admin.post(f"/p/ours/queues/{queue.pk}/{number}/judge/", {"verdict": "right"})
    assert {"rita:", "0.4321"} <= {*shown(admin.get(page))}
    assert "agree on 0.0 %" in " ".join(html(admin.get(f"/p/ours/queues/{queue.pk}/")).split())
    admin.post(f"/p/ours/queues/{queue.pk}/1/judge/", {"verdict": "wrong"})
    newest = Annotation.objects.filter(by=alice, queue=queue).exclude(verdict="")
    assert newest.order_by("-pk")[0].unblinded, "it was judged again after the run's samples were open"
    assert not newest.order_by("pk")[0].unblinded


def test_blindness_is_given_up_for_a_queue_and_that_is_recorded(
    queue_for: QueueFor, admin: Client, viewer: Client, alice: User, rita: User, groups: list[Group]
) -> None:
    queue = queue_for(reviewers=2)
    page = f"/p/ours/runs/{groups[0].run_id}/groups/{groups[0].pk}/"
    assert "0.4321" in html(viewer.get(page)), "a viewer judges nothing"
    admin.post(f"/p/ours/queues/{queue.pk}/2/judge/", {"verdict": "right"})
    for _ in range(2):
        assert viewer.post(f"/p/ours/queues/{queue.pk}/unblind/").status_code == 403
        assert admin.post(f"/p/ours/queues/{queue.pk}/unblind/").status_code == 302
    assert "0.4321" in html(admin.get(page))
    assert [blind.pk for blind in blind_queues(rita, groups[0].run_id)] == [queue.pk], "to others it is still blind"
    admin.post(f"/p/ours/queues/{queue.pk}/1/judge/", {"verdict": "right"})
    assert list(Annotation.objects.order_by("pk").values_list("unblinded", flat=True)) == [False, True]
    assert AuditEntry.objects.filter(kind="review_unblinded").count() == 1
    assert [pace.unblinded for pace in paces([queue])[queue.pk]] == [1]


def test_two_reviewers_and_what_they_differ_on(queue_for: QueueFor, alice: User, rita: User) -> None:
    """By hand: right/right, right/wrong, wrong/wrong, and one unsure. Over three: po 2/3, pe (2·1 + 1·2)/9 = 4/9, κ
    0.4."""
    queue = queue_for(reviewers=2)
    given = [("right", "right"), ("right", "wrong"), ("wrong", "wrong"), ("unsure", "right")]
    for item, verdicts in zip(queue.items.order_by("number"), given, strict=True):
        for actor, verdict in zip((alice, rita), verdicts, strict=True):
            item_judge(item=item, actor=actor, verdict=verdict)
    figures = figures_of(ReviewQueue.objects.get())
    assert (figures.judged, figures.people, figures.kappa.n, figures.kappa_of_three.n) == (4, 2, 3, 4)
    assert figures.kappa.value == pytest.approx(0.4)
    assert (figures.differ_on, [item.number for item in differing(queue)]) == (2, [2, 4])
    made = disagreements_queue(queue=queue, actor=rita, differing=differing(queue))
    assert (made.blind, made.reviewers, made.source, made.name) == (False, 1, queue, "sums: disagreements")
    assert samples_of(made) == [samples_of(queue)[1], samples_of(queue)[3]]
    with pytest.raises(ValidationError):
        disagreements_queue(queue=made, actor=rita, differing=differing(made))
    assert ReviewItem.objects.count() == 6
    assert ReviewClaim.objects.count() == 0


def test_a_queue_is_made_by_its_form(reviewer: Client, groups: list[Group], rita: User) -> None:
    address = f"/p/ours/runs/{groups[0].run_id}/queues/new/?reward_max=0.9"
    assert "reward to 0.9" in html(reviewer.get(address))
    sent = {"name": "low", "size": "5", "order": "filter", "reviewers": "1", "blind": "on", "assignees": [rita.pk]}
    refused = reviewer.post(address, {**sent, "assignees": ["x"]})
    answer = reviewer.post(address, sent)
    queue = ReviewQueue.objects.get()
    assert (refused.status_code, answer.headers["Location"]) == (422, f"/p/ours/queues/{queue.pk}/")
    assert (queue.query, queue.blind, queue.items.count()) == ("reward_max=0.9", True, 2)
    at = reviewer.get(f"/p/ours/queues/{queue.pk}/next/").headers["Location"]
    assert at == f"/p/ours/queues/{queue.pk}/1/"
    for number in (1, 2):
        answer = reviewer.post(f"/p/ours/queues/{queue.pk}/{number}/judge/", {"verdict": "unsure"})
    assert answer.headers["Location"] == f"/p/ours/queues/{queue.pk}/"
    assert "done" in html(reviewer.get("/p/ours/queues/"))


def test_pages_ask_no_more_for_more_queues_and_samples(
    reviewer: Client, queue_for: QueueFor, rita: User, alice: User
) -> None:
    def queries(address: str) -> int:
        with CaptureQueriesContext(connection) as captured:
            assert reviewer.get(address).status_code == 200
        return len(captured)

    first = queue_for(size=1, assignees=[rita])
    item_judge(item=first.items.get(), actor=rita, verdict="right")
    addresses = ("/p/ours/queues/", "/p/ours/", f"/p/ours/queues/{first.pk}/")
    before = [queries(address) for address in addresses[:2]]
    for _ in range(3):
        more = queue_for(assignees=[rita, alice], reviewers=2)
        for item in list(more.items.all())[:2]:
            for actor in (rita, alice):
                item_judge(item=item, actor=actor, verdict="right")
    after = [queries(address) for address in addresses[:2]]
    assert after[0] == before[0]
    assert after[1] <= before[1] + 3, "assignees, who judged and what waits, once for all queues"
    done = queue_for(size=4, assignees=[rita])
    for item in done.items.all():
        item_judge(item=item, actor=rita, verdict="right")
    assert queries(f"/p/ours/queues/{done.pk}/") == queries(addresses[2])


def test_no_text_of_a_model_or_a_person_runs(reviewer: Client, maker: Maker, run: Run, rita: User, alice: User) -> None:
    texts = {"prompt": HOSTILE, "answer": HOSTILE, "completion": HOSTILE, "detail": HOSTILE}
    group = add_group(maker.attempt(run), [1.0, 0.0], **texts)
    group.samples.filter(index=1).update(completion=f"{HOSTILE}.")
    label_add(project=maker.project, actor=rita, letter="s", word=HOSTILE[:40].replace("\x07", ""))
    name = HOSTILE.replace("\x07", "")[:120]
    for blind in (False, True):
        queue = queue_create(run=run, actor=rita, name=name, samples=SampleFilter(), size=2, blind=blind)
        item_judge(item=queue.items.get(number=1), actor=alice, note=name)
        page = f"/p/ours/runs/{run.pk}/groups/{group.pk}/"
        shown = [f"/p/ours/queues/{queue.pk}/1/", f"/p/ours/queues/{queue.pk}/", "/p/ours/queues/", "/p/ours/"]
        for address in [*shown, page, f"{page}pairs/", f"/p/ours/runs/{run.pk}/queues/new/"]:
            answer = reviewer.get(address)
            assert answer.status_code == (403 if blind and address == page else 200)
            content = answer.content.decode()
            assert not [raw for raw in ("<script>alert", "<b hx-get", "\u202e", "\x07") if raw in content], address
