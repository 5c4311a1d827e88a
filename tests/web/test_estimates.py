"""An estimate of a run's time and memory: asked for from the form, measured where nothing trains, kept with the launch,
stale when a setting changes; and the outlook, which is made of past runs.
"""

import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from cohort import __version__
from cohort.accounts.models import User
from cohort.lab.estimates import digest_of
from cohort.lab.jobs import BadResult, job_claim
from cohort.lab.models import JobState, LabJob, LaunchEstimate
from cohort.launch.creation import run_submit
from cohort.nodes.leases import NotWaiting
from cohort.nodes.models import Node
from cohort.runs.models import Run, StepMetric
from cohort.runs.schedule import node_capacities
from cohort.web.launch.outlook import Outlook
from cohort.web.launch.run_form import RunForm
from grpo_core.config.run import RunConfig
from tests.factories.lab import measured, there
from tests.factories.runs import UNPROBED, Maker, add_steps
from tests.factories.worker import NODE
from tests.tables import cases
from tests.web.run_page import words

NEW = "/p/ours/runs/new/"


def send(client: Client, texts: dict[str, str], action: str = "estimate", **other: str) -> str:
    """The panel of the estimate, as htmx gets it."""
    answer = client.post(NEW, texts | other | {"action": action}, headers={"HX-Request": "true"})
    assert answer.status_code == 200
    page = answer.content.decode()
    return page[page.index('id="estimate"') : page.index("</section>", page.index('id="estimate"'))]


def test_from_the_form_to_the_launch(operator: Client, chosen: dict[str, str]) -> None:
    node = there()
    there("small", NODE.model_copy(update={"devices": [{"kind": "cpu", "name": "cpu", "memory_bytes": 1_000_000_000}]}))
    panel = send(operator, chosen)
    job = LabJob.objects.get()
    assert 'hx-trigger="every 2s"' in panel
    address = re.search(r'hx-get="([^"]+)"', panel)
    assert address is not None
    assert operator.get(address[1]).status_code == 200
    assert RunConfig.from_whole(job.config or {}).digest() == job.config_digest
    measured(job, node)
    polled = operator.get(address[1])
    assert (polled.status_code, polled["HX-Trigger"]) == (286, "previewed")
    text = words(polled.content.decode())
    for part in ("0.5 s", "0.4 s to 0.7 s", "sampling", "60 %", "2.00 GB", "evaluations take longer"):
        assert part in text
    text = words(operator.get(f"/p/ours/runs/estimates/{job.pk}/?digest={job.config_digest}").content.decode())
    assert ("too much for small, it has 1.00 GB" in text, "too much for node-e" in text) == (True, False)

    named = chosen | {"name": "another name", "estimate": str(job.pk)}
    stale = "settings have changed"
    assert stale not in send(operator, named, "check"), "the name of a run changes nothing"
    assert stale in send(operator, named | {"sampling.group_size": "6"}, "check")
    operator.post(NEW, named | {"sampling.group_size": "6", "action": "launch"})
    assert not LaunchEstimate.objects.exists(), "other settings take no estimate along"
    operator.post(NEW, named | {"action": "launch"})
    noted = LaunchEstimate.objects.get()
    assert (noted.run.name, noted.job, noted.estimate["seconds_per_step"]) == ("another name", job, 0.5)


def test_never_while_a_run_trains_on_the_node(operator: Client, maker: Maker, chosen: dict[str, str]) -> None:
    node = there()
    send(operator, chosen)
    job = LabJob.objects.get()
    attempt = maker.attempt(maker.run(state="training"))
    Node.objects.filter(pk=attempt.node_id).update(last_seen_at=None)
    attempt.node = node
    attempt.save(update_fields=["node"])
    with pytest.raises(NotWaiting):
        job_claim(job_id=job.pk, node=node, info=NODE)
    assert "node-e trains a run" in operator.get(f"/p/ours/runs/estimates/{job.pk}/").content.decode()
    attempt.state = "finished"
    attempt.save(update_fields=["state"])
    job_claim(job_id=job.pk, node=node, info=NODE)
    [seat] = [seat for seat in node_capacities() if seat.name == "node-e"]
    assert seat.obstacle, "it takes a run when it has measured"


def test_a_run_s_page_compares_it_with_facts(
    operator: Client, alice: User, chosen: dict[str, str], maker: Maker
) -> None:
    node = there()
    send(operator, chosen)
    job = measured(LabJob.objects.get(), node)
    run = maker.run(state="training")
    address = f"/p/ours/runs/{run.pk}/"
    assert 'id="estimated"' not in operator.get(address).content.decode()
    LaunchEstimate.objects.create(run=run, job=job, estimate=job.result, by=alice)
    page = operator.get(address).content.decode()
    assert "0.5 s" in words(page[page.index('id="estimated"') :]), "before the first step"
    add_steps(maker.attempt(run), [{"reward": 0.1, "memory/peak_bytes": peak} for peak in (1.2e9, 2.5e9, 1.0e9)])
    for row, total in zip(StepMetric.objects.filter(run=run).order_by("step"), (0.25, 0.4, 3.0), strict=True):
        StepMetric.objects.filter(pk=row.pk).update(seconds={"total": total})
    page = operator.get(address).content.decode()
    part = words(page[page.index('id="estimated"') :])[:700]
    for expected in ("0.4 s", "+25 %", "2.50 GB", "−20 %"):
        assert expected in part


def test_one_for_a_config_and_only_its_result(
    operator: Client, alice: User, maker: Maker, chosen: dict[str, str]
) -> None:
    node, run = there(), maker.run()
    for faulty in ({"sampling.group_size": ""}, {"engine.training": "deepspeed"}):  # no node has that engine
        send(operator, chosen, **faulty)
    assert not LabJob.objects.exists()
    for _ in range(2):
        send(operator, chosen)
    job = LabJob.objects.get()
    send(operator, chosen, **{"sampling.group_size": "6"})
    assert LabJob.objects.exclude(pk=job.pk).delete()[0] == 1
    for fault in ({"config_digest": "0" * 64}, {"seconds_per_step": "fast"}):
        with pytest.raises(BadResult):
            measured(job, node, **fault)
        LabJob.objects.update(state=JobState.WAITING)
    LabJob.objects.update(config_digest=digest_of(RunConfig.from_whole(run.config)))
    job = measured(LabJob.objects.get(), node)
    run_submit(run=run, actor=alice, probe_override=UNPROBED)
    assert run.launch_estimates.get().job == job, "a run made by the service takes it too"


# ---------------------------------------------------------------- the outlook, which measures nothing


def foreseen(maker: Maker, texts: dict[str, str]) -> Outlook:
    form = RunForm.posted(maker.project, texts)
    form.check()
    return Outlook(form)


@pytest.mark.parametrize(("sent", "expected"), cases("runs/outlook", "sent", "foreseen"))
def test_the_outlook_counts_what_the_run_will_do(
    maker: Maker, chosen: dict[str, str], sent: dict[str, str], expected: dict[str, Any]
) -> None:
    result = foreseen(maker, chosen | sent)
    assert {name: getattr(result, name) for name in expected} == expected


def test_the_outlook_takes_its_time_from_past_runs(maker: Maker, chosen: dict[str, str]) -> None:
    """A past run took 64 s for 32 completions, 2 s each."""
    past = maker.run("past", state="succeeded", sampling={"group_size": 8, "prompts_per_step": 4})
    Run.objects.filter(pk=past.pk).update(seconds_per_step=64.0)
    sent = chosen | {"optim.steps": "3", "sampling.prompts_per_step": "2"}
    time = foreseen(maker, sent).time
    assert time is not None
    assert (time.seconds, time.low, time.high) == (96.0, 96.0, 96.0)
    assert "1 past run of this model" in time.basis
    longer = foreseen(maker, sent | {"sampling.max_completion_tokens": "512"}).time  # twice the past run's limit
    assert longer is not None
    assert (longer.seconds, longer.low, longer.high) == (192.0, 96.0, 192.0)


def test_the_page_has_one_figure_of_time(operator: Client, maker: Maker, chosen: dict[str, str]) -> None:
    """Measured of these very settings, or else from past runs; of other settings no figure stays."""
    past = maker.run("past", state="succeeded")
    Run.objects.filter(pk=past.pk).update(seconds_per_step=64.0)

    def figures(**other: str) -> list[bool]:
        sent = chosen | {"estimate": str(job.pk), "action": "check"} | other
        page = words(operator.post(NEW, sent, headers={"HX-Request": "true"}).content.decode())
        return ["2 min 10 s" in page, "measured of these settings" in page, "1 past run of this model" in page]

    node = there()
    send(operator, chosen)
    job = LabJob.objects.get()
    assert figures() == [False, False, True]
    measured(job, node)
    assert figures() == [True, True, False]
    assert figures(**{"sampling.group_size": "6"}) == [False, False, True]


def without_effect(maker: Maker, chosen: dict[str, str], preset: str, sent: dict[str, str]) -> list[str]:
    form = RunForm.posted(maker.project, chosen)
    if preset:
        form.fill_preset(preset)
    form.texts |= sent
    assert form.check() is not None
    checks = Outlook(form).checks
    return [check.text for check in checks if "no effect: with one update" in check.text and not check.blocks]


@pytest.mark.parametrize("preset", ["luspo", "cispo", "sapo", "vespo", "intellect2"])
def test_a_loss_without_effect_is_said(maker: Maker, chosen: dict[str, str], preset: str) -> None:
    """Papers that published no mini-batches: with one update for a batch their ratio is 1."""

    def says(**sent: str) -> list[str]:
        return without_effect(maker, chosen, preset, sent)

    assert len(says()) == 1
    assert says(**{"algorithm.mini_batches": "2"}) == []


def test_a_clip_range_without_effect_is_said(maker: Maker, chosen: dict[str, str]) -> None:
    clip = {"algorithm.clip_low": "0.1", "algorithm.clip_high": "0.28"}
    assert without_effect(maker, chosen, "", {}) == []
    (text,) = without_effect(maker, chosen, "", clip)
    assert text.startswith("clip_low, clip_high have no effect")
    assert without_effect(maker, chosen, "", clip | {"algorithm.inner_iterations": "2"}) == []


def test_the_outlook_says_whether_a_node_could_take_the_run(maker: Maker, chosen: dict[str, str]) -> None:
    def node_check(**sent: str) -> tuple[bool, bool]:
        check = foreseen(maker, chosen | sent).checks[-1]
        return check.passed, check.blocks

    assert node_check() == (False, False), "none is here, which blocks nothing"
    info: dict[str, Any] = {
        "hostname": "n",
        "devices": [{"kind": "cuda"}],
        "cpus": 4,
        "memory_bytes": 1,
        "labels": ["a100", "fast"],
    }
    info["versions"] = {"cohort-grpo": __version__}
    Node.objects.create(name="node-a", token_digest="1" * 64, last_seen_at=timezone.now(), info=info)
    assert node_check(node_label="fast") == (True, False)
    assert node_check(node_label="slow") == (False, False)
    assert node_check(**{"engine.device": "cuda", "engine.devices": "2"}) == (False, False)
    Node.objects.update(draining="finish")
    assert node_check() == (False, False)
