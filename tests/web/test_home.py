"""The first page of a project: what runs, waits, needs somebody, and is new."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from cohort.accounts.models import Membership, Project, User
from cohort.nodes.models import Node
from cohort.nodes.services import node_create
from cohort.runs.models import Run
from cohort.runs.run_values import verdict_values_store
from cohort.web.home.selectors import SHOWN, Home
from tests.factories.runs import HOSTILE, HOSTILE_SHOWN, Maker, add_evaluation, add_steps, put_in
from tests.web.pages import html
from tests.web.run_page import queries

HOME = "/p/ours/"


def home_of(user: User) -> Home:
    return Home(Membership.objects.select_related("project", "user").get(user=user, project__slug="ours"))


def finished(maker: Maker, name: str, *, hours_ago: float, state: str = "succeeded") -> Run:
    run = maker.run(name, state="training")
    attempt = maker.attempt(run)
    add_evaluation(attempt, "before", [1, 0, 0, 0])
    add_evaluation(attempt, "after", [1, 1, 1, 0])
    put_in(run, state, ended_at=timezone.now() - timedelta(hours=hours_ago))
    return run


def test_an_empty_project_shows_the_way_to_a_first_run(
    operator: Client, viewer: Client, oscar: User, maker: Maker
) -> None:
    page = html(operator.get(HOME))
    assert ("Three steps to a first run" in page, "/p/ours/runs/new/" in page) == (True, True)
    assert "/p/ours/runs/new/" not in html(viewer.get(HOME)), "a viewer launches nothing"
    assert [step.done for step in home_of(oscar).steps] == [False, True, False], "the catalog is there, no node is"
    maker.verifier_version.verifier.versions.all().delete()
    assert [step.done for step in home_of(oscar).steps] == [False, False, False], "nothing to score by"


def test_what_runs_shows_its_health(viewer: Client, maker: Maker, bob: User) -> None:
    run = maker.run(HOSTILE, state="training", optim={"steps": 12})
    attempt = maker.attempt(run)
    add_steps(attempt, [{"reward": 0.25}] * 3)
    whose = {"attempt": attempt, "actor": "trainer", "at": timezone.now()}
    for cause in ("cut_off", "stall", "part_unscored", "cut_off"):
        run.events.create(kind="diagnosis", message="m", data={"cause": cause, "step": 1}, **whose)
    run.events.create(kind="diagnosis_over", message="m", data={"cause": "stall", "step": 3}, **whose)
    put_in(maker.run("waits"), "queued", queued_at=timezone.now())
    home = home_of(bob)
    assert [(line.run.pk, line.health) for line in home.running] == [
        (run.pk, ("completions truncated", "completions not scored"))
    ]
    assert [row.name for row in home.waiting] == ["waits"]
    page = html(viewer.get(HOME))
    for part in (
        HOSTILE_SHOWN,
        "completions truncated",
        "reward 0.25",
        "3 of 12",
        f"/nodes/{attempt.node_id}/",
        "working",
    ):
        assert part in page
    assert "<script>alert" not in page


def test_runs_that_ended_are_new_until_they_are_marked_as_seen(viewer: Client, maker: Maker, bob: User) -> None:
    Membership.objects.filter(user=bob).update(created_at=timezone.now() - timedelta(days=3))
    old, recent = finished(maker, "old", hours_ago=100), finished(maker, "recent", hours_ago=1)
    lines = home_of(bob).finished
    assert [(line.run.pk, line.new, line.before, line.after) for line in lines] == [
        (recent.pk, True, 0.25, 0.75),
        (old.pk, False, 0.25, 0.75),
    ]
    undecided = "undecided at margin 5; about 640 items would decide it"
    verdict_values_store(run=recent, verdicts={"held-out": undecided})
    page = html(viewer.get(HOME)).replace("\xa0", " ")
    assert "25.0 % → 75.0 %" in page
    assert page.count(undecided) == 1
    assert viewer.post(f"{HOME}seen/")["Location"] == HOME
    assert not home_of(bob).has_new
    assert "Mark as seen" not in html(viewer.get(HOME))


def test_a_person_sees_what_they_can_do_something_about(maker: Maker, oscar: User, bob: User) -> None:
    put_in(maker.run("broken"), "failed", reason="out of memory", ended_at=timezone.now())
    put_in(maker.run("stopped"), "paused")
    put_in(maker.run("forgotten"), "failed", ended_at=timezone.now())
    Run.objects.filter(name="forgotten").update(created_at=timezone.now() - timedelta(days=90))
    needs = [(need.run.name, need.what, need.why) for need in home_of(oscar).needs]
    assert needs == [("stopped", "paused", ""), ("broken", "failed", "out of memory")]
    assert home_of(bob).needs == [], "a viewer can do nothing about a run"


def test_nodes_show_what_they_run_and_nothing_of_other_projects(viewer: Client, maker: Maker, bob: User) -> None:
    here, there = maker.run("here", state="training"), maker.run("elsewhere", state="training")
    node = maker.attempt(here).node
    maker.attempt(there)
    Run.objects.filter(pk=there.pk).update(project=Project.objects.get(slug="theirs"))
    silent, gone = node_create(name="silent")[0], node_create(name="gone")[0]
    Node.objects.filter(pk=silent.pk).update(last_seen_at=timezone.now() - timedelta(hours=2))
    Node.objects.filter(pk=gone.pk).update(revoked_at=timezone.now())
    lines = [(status.node.name, status.status, runs, others) for status, runs, others in home_of(bob).node_lines]
    assert lines == [(node.name, "working", [here], 1), ("silent", "silent", [], 0)]
    page = html(viewer.get(HOME))
    assert ("1 of other projects" in page, "elsewhere" in page) == (True, False)


def test_the_page_is_polled_and_costs_the_same_for_many_runs(viewer: Client, maker: Maker, bob: User) -> None:
    finished(maker, "first", hours_ago=1)
    put_in(maker.run("live"), "training")
    page = viewer.get(HOME)
    version = page.context["page"].version
    assert viewer.get(HOME, {"v": version}).status_code == 204
    few = queries(lambda: viewer.get(HOME))
    for number in range(SHOWN + 4):
        finished(maker, f"run {number}", hours_ago=number)
        put_in(maker.run(f"live {number}"), "training")
        put_in(maker.run(f"failed {number}"), "failed", ended_at=timezone.now())
    assert queries(lambda: viewer.get(HOME)) == few
    again = viewer.get(HOME, {"v": version})
    assert (again.status_code, html(again).count('class="home-line"') <= 3 * SHOWN + 5) == (200, True)


@pytest.mark.parametrize("path", ["", "seen/"])
def test_strangers_do_not_learn_of_the_project(stranger: Client, path: str) -> None:
    answer = stranger.post(f"{HOME}{path}") if path else stranger.get(HOME)
    assert answer.status_code == 404
