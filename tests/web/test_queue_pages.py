"""The queue and a project's limits on their pages, and what the form of a new run says of priority and node label."""

import re
from collections.abc import Callable

from django.test import Client
from django.utils import timezone

from cohort.accounts.models import Project, User
from cohort.runs.models import Node, Run
from tests.web.control import do, poll_of
from tests.web.run_page import page_of, words
from tests.web.run_rows import Maker

ClientFor = Callable[[User], Client]


# ---------------------------------------------------------------- queue and limits


def test_an_empty_queue_says_what_comes_here(client_for: ClientFor, ours: Project, oscar: User, bob: User) -> None:
    assert "Nothing waits. A run that is launched stands here" in words(
        client_for(oscar).get("/p/ours/queue/").content.decode()
    )
    text = words(client_for(bob).get("/p/ours/queue/").content.decode())
    assert "Nothing waits." in text
    assert "No worker has a run now." in text
    assert "0 running, no limit · 0.0 GPU-hours in 30 days, no limit" in text.replace("limit 0.0", "limit · 0.0")


def test_the_queue_says_who_waits_for_what(client_for: ClientFor, oscar: User, maker: Maker) -> None:
    busy = maker.run("busy", state="training")
    maker.attempt(busy)
    Node.objects.update(last_seen_at=timezone.now())
    maker.run("plain", state="queued")
    labelled = maker.run("labelled", state="queued")
    Run.objects.filter(pk=labelled.pk).update(node_label="a100", priority=10)
    client = client_for(oscar)
    page = client.get("/p/ours/queue/").content.decode()
    rows = [words(row) for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)]
    assert re.match(r"1 labelled \w+.* a node with the label a100 no node that is here has the label a100", rows[1])
    assert re.match(r"2 plain .* any node node-a, the only node that could take it, is busy", rows[2])
    assert re.match(r"busy attempt 1 ● Training 0 of \d+ node-a", rows[4])
    assert 'id="count-waiting">2<' in page
    assert client.get(f"/p/ours/runs/{busy.pk}/priority/").status_code == 405
    plain = Run.objects.get(name="plain")
    text = do(client, plain, "priority", priority="-10")
    assert plain.priority == -10
    assert "plain has low priority among the runs of this project." in text
    assert "a priority is one of" in do(client, plain, "priority", priority="77")


def test_the_queue_polls_and_is_quiet_while_nothing_changes(client_for: ClientFor, bob: User, maker: Maker) -> None:
    run = maker.run(state="queued")
    client = client_for(bob)
    address = poll_of(client.get("/p/ours/queue/").content.decode())
    assert client.get(address).status_code == 204
    Run.objects.filter(pk=run.pk).update(priority=10)
    changed = client.get(address)
    assert changed.status_code == 200
    assert "<html" not in changed.content.decode()


def test_runs_of_another_project_have_no_name_here(
    client_for: ClientFor, charlie: User, oscar: User, maker: Maker
) -> None:
    waits, runs = maker.run("secret one", state="queued"), maker.run("secret two", state="training")
    Run.objects.filter(pk=waits.pk).update(node_label="a100")
    maker.attempt(runs)
    page = client_for(charlie).get("/p/theirs/queue/").content.decode()
    assert "secret" not in page
    assert "Our project" not in page
    assert page.count("a run of another project") == 2
    assert "a node with the label a100" in page
    assert "/priority/" not in page
    assert client_for(charlie).post(f"/p/theirs/runs/{waits.pk}/priority/", {"priority": "10"}).status_code == 404


def test_limits_are_set_by_an_admin_and_seen_by_all(
    client_for: ClientFor, alice: User, oscar: User, bob: User, ours: Project
) -> None:
    address = "/p/ours/limits/"
    data = {"max_running": "3", "gpu_hours_limit": "100"}
    assert client_for(oscar).post(address, data).status_code == 403
    assert client_for(alice).post(address, data).url == "/p/ours/queue/"
    ours.refresh_from_db()
    assert (ours.max_running, ours.gpu_hours_limit) == (3, 100)
    text = words(client_for(bob).get("/p/ours/queue/").content.decode())
    assert "0 of 3 running" in text
    assert "0.0 of 100 GPU-hours in 30 days" in text
    assert "Set limits" not in client_for(bob).get(address).content.decode()
    refused = client_for(alice).post(address, {"max_running": "0", "gpu_hours_limit": "x"})
    assert refused.status_code == 422
    assert "greater than or equal to 1" in refused.content.decode()
    client_for(alice).post(address, {"max_running": "", "gpu_hours_limit": ""})
    ours.refresh_from_db()
    assert (ours.max_running, ours.gpu_hours_limit) == (None, None)


def test_a_full_project_waits_and_says_so(client_for: ClientFor, bob: User, maker: Maker, ours: Project) -> None:
    Project.objects.filter(pk=ours.pk).update(max_running=1)
    maker.attempt(maker.run("busy", state="training"))
    run = maker.run("next", state="queued")
    said = "the project's limit of running runs is reached (1 of 1 run)".replace("'", "&#x27;")
    assert said in page_of(client_for(bob), run)
    assert said in client_for(bob).get("/p/ours/queue/").content.decode()


# ---------------------------------------------------------------- the form


def test_the_form_offers_labels_that_are_here_and_warns_of_others(
    client_for: ClientFor, oscar: User, chosen: dict[str, str]
) -> None:
    info = {"hostname": "n", "devices": [{"kind": "cuda"}], "cpus": 4, "memory_bytes": 1, "labels": ["a100", "fast"]}
    Node.objects.create(name="node-a", token_digest="1" * 64, last_seen_at=timezone.now(), info=info)
    client = client_for(oscar)
    page = client.get("/p/ours/runs/new/").content.decode()
    assert '<option value="a100"></option><option value="fast"></option>' in page
    assert "Here now: a100, fast." in page

    def checked(**data: str) -> str:
        answer = client.post("/p/ours/runs/new/", chosen | data | {"action": "check"}, headers={"HX-Request": "true"})
        return words(answer.content.decode())

    assert "a worker is there: node-a" in checked(node_label="fast")
    assert "no worker that is here has the label slow: the run will wait for one" in checked(node_label="slow")
    two = {"engine.device": "cuda", "engine.devices": "2", "node_label": "fast"}
    assert "no worker that is here has the label fast and 2 GPUs" in checked(**two)
    for wrong in ("a b", "A100", "gpu2", "train", "platform", "-a", "a" * 41):
        assert "Node label takes lower-case letters, digits, - and _" in checked(node_label=wrong)
    assert "Priority must be one of" in checked(priority="5")


def test_a_clone_says_of_what(client_for: ClientFor, oscar: User, maker: Maker, chosen: dict[str, str]) -> None:
    first = maker.run("first & best")
    Run.objects.filter(pk=first.pk).update(priority=10, node_label="a100")
    client = client_for(oscar)
    page = client.get(f"/p/ours/runs/new/?clone={first.pk}").content.decode()
    assert f'name="cloned_from" value="{first.pk}"' in page
    assert '<option value="10" selected>high' in page
    assert 'name="node_label" value="a100"' in page
    data = chosen | {"cloned_from": str(first.pk), "priority": "10", "node_label": "a100", "action": "draft"}
    client.post("/p/ours/runs/new/", data)
    clone = Run.objects.get(name="adder")
    assert (clone.cloned_from, clone.priority, clone.node_label) == (first, 10, "a100")
    assert f'cloned from <a href="/p/ours/runs/{first.pk}/">first &amp; best</a>' in page_of(client, clone)
