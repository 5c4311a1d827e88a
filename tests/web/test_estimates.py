"""An estimate of a run's time and memory: asked for from the form, measured where nothing trains, kept with the launch,
stale when a setting changes."""

import re
from collections.abc import Callable

import pytest
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.lab.jobs import BadResult, job_claim
from cohort.lab.models import JobState, LabJob, LaunchEstimate
from cohort.runs.attempts import NotWaiting
from cohort.runs.models import Node, Run
from cohort.runs.schedule import seats
from cohort.runs.services import run_submit
from grpo_core.config import RunConfig
from tests.web.estimate_rows import measured, there
from tests.web.form_page import as_browser
from tests.web.run_rows import Maker, add_steps
from tests.worker.making import NODE

pytestmark = pytest.mark.django_db

ClientFor = Callable[[User], Client]
NEW = "/p/ours/runs/new/"


def asked(client: Client, chosen: dict[str, str], **other: str) -> str:
    answer = client.post(NEW, chosen | other | {"action": "estimate"}, headers={"HX-Request": "true"})
    assert answer.status_code == 200
    return answer.content.decode()


def panel(page: str) -> str:
    return page[page.index('id="estimate"') : page.index("</section>", page.index('id="estimate"'))]


def test_from_the_form_to_the_launch(client_for: ClientFor, oscar: User, chosen: dict[str, str]) -> None:
    client, node = client_for(oscar), there()
    assert "Measure on a worker" in panel(client.get(NEW).content.decode())
    page = panel(asked(client, chosen))
    job = LabJob.objects.get()
    assert 'hx-trigger="every 2s"' in page
    assert "Waits for a worker" in page
    assert "Measure" not in page.replace("Measuring", "")
    address = re.search(r'hx-get="([^"]+)"', page)
    assert address is not None
    assert client.get(address[1]).status_code == 200
    assert RunConfig.from_whole(job.config or {}).digest() == job.config_digest

    measured(job, node)
    polled = client.get(address[1])
    assert polled.status_code == 286
    page = polled.content.decode()
    for words in ("0.5 s", "0.4 s to 0.7 s", "sampling", "60 %", "2 min 10 s", "2.00 GB", "evaluations take longer"):
        assert words in page.replace("\xa0", " "), words
    assert "Measure again" in page

    named = chosen | {"name": "another name", "estimate": str(job.pk), "action": "check"}
    page = panel(client.post(NEW, named, headers={"HX-Request": "true"}).content.decode())
    assert "of other settings" not in page, "the name of a run changes nothing"
    changed = named | {"sampling.group_size": "6"}
    page = panel(client.post(NEW, changed, headers={"HX-Request": "true"}).content.decode())
    assert "The settings have changed since this was measured" in page
    assert "Measure again" in page

    client.post(NEW, named | {"action": "launch"})
    noted = LaunchEstimate.objects.get(run=Run.objects.get())
    assert (noted.job, noted.estimate["seconds_per_step"]) == (job, 0.5)


def test_other_settings_take_no_estimate_along(client_for: ClientFor, oscar: User, chosen: dict[str, str]) -> None:
    client, node = client_for(oscar), there()
    asked(client, chosen)
    measured(LabJob.objects.get(), node)
    client.post(NEW, chosen | {"sampling.group_size": "6", "action": "launch"})
    assert Run.objects.count() == 1
    assert not LaunchEstimate.objects.exists()


def test_asked_twice_it_is_one(client_for: ClientFor, oscar: User, chosen: dict[str, str]) -> None:
    client = client_for(oscar)
    asked(client, chosen)
    asked(client, chosen)
    assert LabJob.objects.count() == 1
    asked(client, chosen, **{"sampling.group_size": "6"})
    assert LabJob.objects.count() == 2


def test_without_scripts_the_page_keeps_what_was_typed(
    client_for: ClientFor, oscar: User, chosen: dict[str, str]
) -> None:
    page = client_for(oscar).post(NEW, chosen | {"name": "typed", "action": "estimate"}).content.decode()
    sent = as_browser(page)
    assert (sent["name"], sent["estimate"]) == ("typed", str(LabJob.objects.get().pk))


def test_a_form_with_faults_is_not_measured(client_for: ClientFor, oscar: User, chosen: dict[str, str]) -> None:
    page = asked(client_for(oscar), chosen, **{"sampling.group_size": ""})
    assert "G must not be empty" in page
    assert not LabJob.objects.exists()


def test_refused_where_no_node_has_the_engine(client_for: ClientFor, oscar: User, chosen: dict[str, str]) -> None:
    there()
    page = asked(client_for(oscar), chosen, **{"engine.training": "deepspeed"})
    assert "No node has DeepSpeed" in page
    assert not LabJob.objects.exists()


def test_never_beside_a_run(
    client_for: ClientFor, oscar: User, alice: User, maker: Maker, chosen: dict[str, str]
) -> None:
    client, node = client_for(oscar), there()
    asked(client, chosen)
    job = LabJob.objects.get()
    attempt = maker.attempt(maker.run(state="training"))
    Node.objects.filter(pk=attempt.node_id).update(last_seen_at=None)
    attempt.node = node
    attempt.save(update_fields=["node"])
    with pytest.raises(NotWaiting, match="trains one now"):
        job_claim(job_id=job.pk, node=node, info=NODE)
    assert (
        "node-e trains a run, beside which both would be measured"
        in client.get(f"/p/ours/runs/estimates/{job.pk}/").content.decode()
    )
    attempt.state = "finished"
    attempt.save(update_fields=["state"])
    job_claim(job_id=job.pk, node=node, info=NODE)
    [seat] = [seat for seat in seats() if seat.name == "node-e"]
    assert seat.obstacle == "measures what a run will take, and takes one when it has"


def test_what_is_of_another_config_is_refused(client_for: ClientFor, oscar: User, chosen: dict[str, str]) -> None:
    node = there()
    asked(client_for(oscar), chosen)
    job = LabJob.objects.get()
    with pytest.raises(BadResult, match="of the config"):
        measured(job, node, config_digest="0" * 64)
    LabJob.objects.update(state=JobState.WAITING)
    with pytest.raises(BadResult, match="seconds_per_step"):
        measured(job, node, seconds_per_step="fast")


def test_nodes_with_too_little_memory_are_named(client_for: ClientFor, oscar: User, chosen: dict[str, str]) -> None:
    node = there()
    small = {"kind": "cpu", "name": "cpu", "memory_bytes": 1_000_000_000}
    there("small", NODE.model_copy(update={"devices": [small]}))
    page = asked(client_for(oscar), chosen)
    job = measured(LabJob.objects.get(), node)
    page = client_for(oscar).get(f"/p/ours/runs/estimates/{job.pk}/?digest={job.config_digest}").content.decode()
    assert "needs about 2.00 GB: too much for small, it has 1.00 GB" in page.replace("\xa0", " ")
    assert "too much for node-e" not in page


def test_strangers_and_viewers_see_none(
    client_for: ClientFor, oscar: User, charlie: User, chosen: dict[str, str], ours: Project
) -> None:
    asked(client_for(oscar), chosen)
    address = f"/p/ours/runs/estimates/{LabJob.objects.get().pk}/"
    assert client_for(charlie).get(address).status_code == 404


def test_the_runs_page_says_what_it_was_worth(
    client_for: ClientFor, oscar: User, alice: User, chosen: dict[str, str], maker: Maker
) -> None:
    client, node = client_for(oscar), there()
    asked(client, chosen)
    job = measured(LabJob.objects.get(), node)
    run = maker.run(state="training")
    assert 'id="estimated"' not in client.get(f"/p/ours/runs/{run.pk}/").content.decode()
    LaunchEstimate.objects.create(run=run, job=job, estimate=job.result, by=alice)
    page = client.get(f"/p/ours/runs/{run.pk}/").content.decode()
    assert "0.5 s" in page[page.index('id="estimated"') :], "before the first step"
    attempt = maker.attempt(run)
    add_steps(attempt, [{"reward": 0.1, "memory/peak_bytes": peak} for peak in (1.2e9, 2.5e9, 1.0e9)])
    attempt.run.refresh_from_db()
    from cohort.runs.models import StepMetric

    for row, total in zip(StepMetric.objects.filter(run=run).order_by("step"), (0.25, 0.4, 3.0), strict=True):
        StepMetric.objects.filter(pk=row.pk).update(seconds={"total": total})
    page = client.get(f"/p/ours/runs/{run.pk}/").content.decode()
    part = page[page.index('id="estimated"') :].replace("\xa0", " ")[:1500]
    assert "0.4 s" in part
    assert "+25 %" in part
    assert "2.50 GB" in part
    assert "\N{MINUS SIGN}20 %" in part


def test_a_run_made_by_the_service_takes_it_too(
    client_for: ClientFor, oscar: User, alice: User, maker: Maker, chosen: dict[str, str]
) -> None:
    node, run = there(), maker.run()
    asked(client_for(oscar), chosen)
    job = LabJob.objects.get()
    from cohort.lab.estimates import digest_of

    LabJob.objects.update(config_digest=digest_of(RunConfig.from_whole(run.config)))
    job.refresh_from_db()
    measured(job, node)
    run_submit(run=run, actor=alice)
    assert run.launch_estimates.get().job == job
