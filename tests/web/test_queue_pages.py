"""The queue and a project's limits on their pages."""

from django.test import Client
from django.utils import timezone

from cohort.accounts.models import Project
from cohort.runs.models import Node, Run
from tests.factories.runs import Maker
from tests.web.control import do, fresh, poll_of
from tests.web.run_page import page_of, words

QUEUE = "/p/ours/queue/"


def test_the_queue_shows_who_waits_for_what(operator: Client, maker: Maker) -> None:
    busy = maker.run("busy", state="training")
    maker.attempt(busy)
    Node.objects.update(last_seen_at=timezone.now())
    plain = maker.run("plain", state="queued")
    labelled = maker.run("labelled", state="queued")
    Run.objects.filter(pk=labelled.pk).update(node_label="a100", priority=10)
    response = operator.get(QUEUE)
    found = response.context["page"]
    assert [(row.place, row.run.name, row.needs) for row in found.waiting] == [
        (1, "labelled", "a node with the label a100"),
        (2, "plain", "any node"),
    ]
    assert "node-a" in found.waiting[1].why
    assert [attempt.run.name for attempt in found.running] == ["busy"]
    page = response.content.decode()
    for part in ("labelled", "plain", "busy", found.waiting[0].why, 'id="count-waiting">2<'):
        assert part in page
    do(operator, plain, "priority", priority="-10")
    assert plain.priority == -10
    assert "Nothing was done" in do(operator, plain, "priority", priority="77")
    assert plain.priority == -10


def test_the_queue_polls_and_is_quiet_while_nothing_changes(viewer: Client, maker: Maker) -> None:
    run = maker.run(state="queued")
    address = poll_of(viewer.get(QUEUE).content.decode())
    assert viewer.get(address).status_code == 204
    Run.objects.filter(pk=run.pk).update(priority=10)
    changed = viewer.get(address)
    assert changed.status_code == 200
    assert "<html" not in changed.content.decode()


def test_runs_of_another_project_have_no_name_here(stranger: Client, maker: Maker) -> None:
    waits, runs = maker.run("secret one", state="queued"), maker.run("secret two", state="training")
    Run.objects.filter(pk=waits.pk).update(node_label="a100")
    maker.attempt(runs)
    page = stranger.get("/p/theirs/queue/").content.decode()
    for hidden in ("secret", "Our project", "/priority/"):
        assert hidden not in page
    assert page.count("a run of another project") == 2
    assert "a node with the label a100" in page


def test_limits_are_set_by_an_admin_and_seen_by_all(admin: Client, viewer: Client, ours: Project) -> None:
    address = "/p/ours/limits/"
    assert admin.post(address, {"max_running": "3", "gpu_hours_limit": "100"}).url == QUEUE
    assert (fresh(ours).max_running, ours.gpu_hours_limit) == (3, 100)
    text = words(viewer.get(QUEUE).content.decode())
    assert "0 of 3 running" in text
    assert "0.0 of 100 GPU-hours" in text
    assert "Set limits" not in viewer.get(address).content.decode()
    refused = admin.post(address, {"max_running": "0", "gpu_hours_limit": "x"})
    assert refused.status_code == 422
    assert set(refused.context["form"].errors) == {"max_running", "gpu_hours_limit"}
    admin.post(address, {"max_running": "", "gpu_hours_limit": ""})
    assert (fresh(ours).max_running, ours.gpu_hours_limit) == (None, None)


def test_a_full_project_waits_and_shows_why(viewer: Client, maker: Maker, ours: Project) -> None:
    Project.objects.filter(pk=ours.pk).update(max_running=1)
    maker.attempt(maker.run("busy", state="training"))
    run = maker.run("next", state="queued")
    for page in (page_of(viewer, run), viewer.get(QUEUE).content.decode()):
        assert "(1 of 1 run)" in page
