"""A run's attempts and checkpoints on their page, pins, and that what is superseded says so wherever it is shown."""

import re
from collections.abc import Callable
from datetime import timedelta

from django.test import Client
from django.utils import timezone

from cohort.accounts.models import User
from cohort.runs.models import Attempt, Run
from tests.web.control import ended, poll_of
from tests.web.run_page import freeze, page_of, words
from tests.web.run_rows import HOSTILE, Maker, add_evaluation, add_group, add_steps

ClientFor = Callable[[User], Client]


def test_attempts_say_from_to_how_they_ended_and_what_is_superseded(
    client_for: ClientFor, bob: User, maker: Maker, trained: Run
) -> None:
    first = trained.attempts.get()
    ended(first, "lost", end_code="worker_lost", end_reason=f"no sign of life {HOSTILE}", valid_through=4)
    second = maker.attempt(trained)
    Attempt.objects.filter(pk=second.pk).update(resumed_step=4)
    second.refresh_from_db()
    add_steps(second, [{"reward": 0.5}], first=5)
    page = page_of(client_for(bob), trained, "attempts/")
    rows = [words(row) for row in re.findall(r"<tr>(.*?)</tr>", page.split("Checkpoints</h2>")[0], re.DOTALL)][1:]
    assert rows[0].startswith("2 node-a 5 to 5 ")
    assert "superseded" not in rows[0]
    assert rows[1].startswith("1 node-a 1 to 6 2 superseded ")
    assert "✕ Lost worker_lost no sign of life &lt;script&gt;" in rows[1]
    assert rows[1].endswith(" 10"), "six steps and four checkpoints"
    assert "<script>alert" not in page
    assert "showing 2 of 2" in words(page)


def test_checkpoints_say_where_they_lie(client_for: ClientFor, bob: User, oscar: User, trained: Run) -> None:
    trained.checkpoints.filter(step=6).update(stored_at=timezone.now(), pinned=True)
    with freeze(trained.checkpoints.get(step=6).at + timedelta(seconds=5)):
        page = page_of(client_for(bob), trained, "attempts/")
    text = words(page.split("Checkpoints</h2>")[1])
    assert "showing 3 of 4; 1 made room for newer ones" in text
    assert "6 1 5 s ago in 400 ms 12.0 MB on node-a and stored on the platform pinned" in text
    assert "★ best" in text
    assert "Pin" not in text, "a viewer pins nothing"
    every = words(page_of(client_for(oscar), trained, "attempts/", all="1").split("Checkpoints</h2>")[1])
    assert "showing 4 of 4" in every
    assert "removed" in every


def test_a_checkpoint_is_pinned_and_let_go(client_for: ClientFor, oscar: User, bob: User, trained: Run) -> None:
    checkpoint = trained.checkpoints.get(step=4)
    address = f"/p/ours/runs/{trained.pk}/checkpoints/{checkpoint.pk}/pin/"
    assert client_for(bob).post(address, {"pinned": "true"}).status_code == 403
    client = client_for(oscar)
    for pinned, said in (("true", "is pinned: it stays"), ("false", "is no longer pinned")):
        response = client.post(address, {"pinned": pinned}, follow=True)
        assert f"The checkpoint at step 4 {said}" in response.content.decode()
        assert response.redirect_chain[-1][0].endswith("/attempts/#checkpoints")
        checkpoint.refresh_from_db()
        assert checkpoint.pinned == (pinned == "true")
    removed = trained.checkpoints.get(step=2)
    text = client.post(f"/p/ours/runs/{trained.pk}/checkpoints/{removed.pk}/pin/", {"pinned": "true"}, follow=True)
    assert "Nothing was done: the checkpoint at step 2 has been removed." in text.content.decode()
    foreign = f"/p/ours/runs/{trained.pk}/checkpoints/{checkpoint.pk + 1000}/pin/"
    assert client.post(foreign, {"pinned": "true"}).status_code == 404


def test_what_is_superseded_says_so_where_it_is_shown(
    client_for: ClientFor, bob: User, maker: Maker, trained: Run
) -> None:
    first = trained.attempts.get()
    stands, gone = add_group(first, [1.0, 0.0], step=4), add_group(first, [1.0, 0.0], step=5)
    add_evaluation(first, "before", [1, 0, 1])
    add_evaluation(first, "after", [1, 1, 0, 0])
    ended(first, "lost", valid_through=4)
    second = maker.attempt(trained)
    Attempt.objects.filter(pk=second.pk).update(resumed_step=4)
    client = client_for(bob)
    said = "uperseded: attempt 2 went on from step 4"
    assert said in words(page_of(client, trained, f"groups/{gone.pk}/"))
    assert said not in words(page_of(client, trained, f"groups/{stands.pk}/"))
    table = words(page_of(client, trained, "evaluations/").split("Superseded results")[-1])
    assert f"held-out after 1 2 of 4 s{said}" in table
    assert "before" not in table, "what was measured before training stands"


def test_an_attempt_that_was_lost_before_it_went_on_supersedes_nothing(
    client_for: ClientFor, bob: User, maker: Maker, trained: Run
) -> None:
    first = trained.attempts.get()
    gone = add_group(first, [1.0, 0.0], step=5)
    ended(first, "lost", valid_through=4)
    ended(maker.attempt(trained), "lost")
    third = maker.attempt(trained)
    Attempt.objects.filter(pk=third.pk).update(resumed_step=4)
    assert "uperseded: attempt 3 went on from step 4" in words(page_of(client_for(bob), trained, f"groups/{gone.pk}/"))


def test_a_beginning_anew_supersedes_all(client_for: ClientFor, bob: User, maker: Maker, trained: Run) -> None:
    first = trained.attempts.get()
    gone = add_group(first, [1.0, 0.0], step=1)
    add_evaluation(first, "before", [1, 0])
    ended(first, "failed", valid_through=-1)
    maker.attempt(trained)
    client = client_for(bob)
    assert "uperseded: attempt 2 began at the first step" in words(page_of(client, trained, f"groups/{gone.pk}/"))
    assert "held-out before 1 1 of 2" in words(page_of(client, trained, "evaluations/").split("Superseded results")[-1])


def test_all_of_a_live_run_stay_shown(client_for: ClientFor, bob: User, maker: Maker, trained: Run) -> None:
    """The poll of a page that shows all brings all again."""
    client = client_for(bob)
    for tab, shown in (("attempts/", 3), ("attempts/?all=1", 4)):
        address = poll_of(client.get(f"/p/ours/runs/{trained.pk}/{tab}").content.decode())
        for step in (7, 8):
            add_steps(trained.attempts.get(), [{"reward": 0.5}], first=step)
            page = client.get(address).content.decode()
            assert f"Checkpoints showing {shown} of 4" in words(page), (tab, step)
            address = poll_of(page)
