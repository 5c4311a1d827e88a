"""A run's attempts and checkpoints on their page, pins, and that what is superseded is marked wherever it is shown."""

from django.test import Client
from django.utils import timezone

from cohort.runs.models import Attempt, Run
from cohort.web.runs.tries import attempt_rows, attempts_of, checkpoint_rows, checkpoints_of, successor
from tests.factories.runs import HOSTILE, HOSTILE_SHOWN, Maker, add_evaluation, add_group, add_steps
from tests.web.control import ended, fresh, poll_of
from tests.web.pages import html
from tests.web.run_page import page_of, words


def second_of(maker: Maker, run: Run, *, resumed: int) -> Attempt:
    second = maker.attempt(run)
    Attempt.objects.filter(pk=second.pk).update(resumed_step=resumed)
    second.refresh_from_db()
    return second


def test_attempts_show_their_steps_their_end_and_what_is_superseded(viewer: Client, maker: Maker, trained: Run) -> None:
    ended(trained.attempts.get(), "lost", end_code="worker_lost", end_reason=f"no sign {HOSTILE}", valid_through=4)
    add_steps(second_of(maker, trained, resumed=4), [{"reward": 0.5}], first=5)
    rows = attempt_rows(attempts_of(trained))
    assert [(row.attempt.fence, row.first_step, row.last_step, row.superseded) for row in rows] == [
        (2, 5, 5, 0),
        (1, 1, 6, 2),
    ]
    page = page_of(viewer, trained, "attempts/")
    for part in ("worker_lost", HOSTILE_SHOWN, "2 superseded"):
        assert part in page
    assert "<script>alert" not in page


def test_checkpoints_show_where_they_lie(viewer: Client, operator: Client, trained: Run) -> None:
    trained.checkpoints.filter(step=6).update(stored_at=timezone.now(), pinned=True)
    rows = checkpoint_rows(checkpoints_of(trained))
    assert [row.where for row in rows] == ["on node-a and stored on the platform", "on node-a", "on node-a"]
    page = page_of(viewer, trained, "attempts/")
    text = words(page.split("Checkpoints</h2>")[1])
    assert "showing 3 of 4; 1 removed by retention" in text
    for part in ("12.0 MB", "pinned", "best"):
        assert part in text
    assert "/pin/" not in page, "a viewer pins nothing"
    every = page_of(operator, trained, "attempts/", all="1")
    assert ("/pin/" in every, "removed" in every) == (True, True)


def test_a_checkpoint_is_pinned_and_let_go(operator: Client, trained: Run) -> None:
    checkpoint = trained.checkpoints.get(step=4)
    for pinned in (True, False):
        response = operator.post(
            f"/p/ours/runs/{trained.pk}/checkpoints/{checkpoint.pk}/pin/", {"pinned": str(pinned).lower()}
        )
        assert response["Location"].endswith("/attempts/#checkpoints")
        assert fresh(checkpoint).pinned is pinned
    removed = trained.checkpoints.get(step=2)
    operator.post(f"/p/ours/runs/{trained.pk}/checkpoints/{removed.pk}/pin/", {"pinned": "true"})
    assert not fresh(removed).pinned


def test_what_is_superseded_is_marked_where_it_is_shown(viewer: Client, maker: Maker, trained: Run) -> None:
    first = trained.attempts.get()
    stands, gone = add_group(first, [1.0, 0.0], step=4), add_group(first, [1.0, 0.0], step=5)
    add_evaluation(first, "before", [1, 0, 1])
    add_evaluation(first, "after", [1, 1, 0, 0])
    ended(first, "lost", valid_through=4)
    second_of(maker, trained, resumed=4)
    mark = "uperseded: attempt 2 resumed from step 4"
    assert mark in words(page_of(viewer, trained, f"groups/{gone.pk}/"))
    assert mark not in words(page_of(viewer, trained, f"groups/{stands.pk}/"))
    table = words(page_of(viewer, trained, "evaluations/").split("Superseded results")[-1])
    assert f"held-out after 1 2 of 4 s{mark}" in table
    assert "before" not in table, "what was measured before training stands"


def test_an_attempt_that_was_lost_before_it_went_on_supersedes_nothing(maker: Maker, trained: Run) -> None:
    first = trained.attempts.get()
    ended(first, "lost", valid_through=4)
    ended(maker.attempt(trained), "lost")
    second_of(maker, trained, resumed=4)
    later = successor(first, step=5)
    assert later is not None
    assert (later.fence, later.from_step) == (3, 4)
    assert successor(first, step=4) is None


def test_a_beginning_anew_supersedes_all(viewer: Client, maker: Maker, trained: Run) -> None:
    first = trained.attempts.get()
    add_evaluation(first, "before", [1, 0])
    ended(first, "failed", valid_through=-1)
    maker.attempt(trained)
    later = successor(first, step=1)
    assert later is not None
    assert (later.fence, later.from_step) == (2, None)
    table = words(page_of(viewer, trained, "evaluations/").split("Superseded results")[-1])
    assert "held-out before 1 1 of 2" in table


def test_all_of_a_live_run_stay_shown(viewer: Client, maker: Maker, trained: Run) -> None:
    """The poll of a page that shows all brings all again."""
    for tab, count in (("attempts/", 3), ("attempts/?all=1", 4)):
        address = poll_of(html(viewer.get(f"/p/ours/runs/{trained.pk}/{tab}")))
        for step in (7, 8):
            add_steps(trained.attempts.get(), [{"reward": 0.5}], first=step)
            page = html(viewer.get(address))
            assert f"Checkpoints showing {count} of 4" in words(page), (tab, step)
            address = poll_of(page)
