"""The hold-back: a reward known to pay wrong answers launches only for a reason, which is kept and shown."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.db import DatabaseError, transaction
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.audit.models import AuditEntry
from cohort.catalog.models import PromptDataset, VerifierVersion
from cohort.lab.gate import gate, launch_of
from cohort.lab.models import LaunchProbe, VerifierProbe
from cohort.runs.models import Run
from cohort.runs.services import run_create, run_submit
from grpo_core.errors import ConfigError
from tests.web.lab_rows import format_only, probed
from tests.web.run_rows import HOSTILE, HOSTILE_SHOWN, Maker

ClientFor = Callable[[User], Client]
REASON = "Only the form is to be learned in this warm-up."
NEW = "/p/ours/runs/new/"


@pytest.fixture
def held(ours: Project, oscar: User) -> VerifierProbe:
    """Of a version that pays the form alone."""
    return probed(format_only(ours, oscar), oscar)


def draft(maker: Maker, version: VerifierVersion) -> Run:
    return run_create(**{**maker._named("draft"), "verifier_version": version}, settings={"eval": {"holdout": 4}})


def entry(kind: str) -> Any:
    (found,) = [json.loads(bytes(row.body)) for row in AuditEntry.objects.filter(kind=kind)]
    return found


def noted(run: Run) -> LaunchProbe:
    launch = launch_of(run)
    assert launch is not None
    return launch


def test_a_probe_on_the_same_dataset_counts_more_than_a_newer_one(
    ours: Project, oscar: User, dataset: PromptDataset, heldout: PromptDataset, verifier_version: VerifierVersion
) -> None:
    assert gate(verifier_version, dataset).state == "unprobed"
    other = probed(verifier_version, oscar, heldout)
    assert gate(verifier_version, dataset).probe == other, "the newest, where there is none of the dataset"
    mine = probed(verifier_version, oscar, dataset)
    probed(verifier_version, oscar, heldout)
    assert gate(verifier_version, dataset).probe == mine
    newest = probed(verifier_version, oscar, dataset)
    assert gate(verifier_version, dataset).probe == newest
    assert gate(format_only(ours, oscar), dataset).state == "unprobed", "nothing is known of another version"


@pytest.mark.parametrize("reason", ["", "   ", "because", "  too short", "x" * 5_001])
def test_without_a_reason_of_fit_length_nothing_is_launched(maker: Maker, held: VerifierProbe, reason: str) -> None:
    run = draft(maker, held.version)
    with pytest.raises(ConfigError) as refused:
        run_submit(run=run, actor=maker.actor, probe_override=reason)
    assert [fault.path for fault in refused.value.problems] == ["probe_override"]
    run.refresh_from_db()
    assert run.state == "draft"
    assert not LaunchProbe.objects.exists()
    assert not AuditEntry.objects.filter(kind__in=["run_submitted", "hold_back_overridden"]).exists()


def test_a_reason_is_kept_with_what_was_known(maker: Maker, held: VerifierProbe) -> None:
    run = draft(maker, held.version)
    run_submit(run=run, actor=maker.actor, probe_override=f"  {REASON} ")
    run.refresh_from_db()
    launch = noted(run)
    assert run.state == "queued"
    assert (launch.probe, launch.state, launch.overridden, launch.reason) == (held, "pays_wrong", True, REASON)
    assert (launch.by, launch.pays_wrong) == (maker.actor, held.pays_wrong)
    logged = entry("hold_back_overridden")
    assert (logged["reason"], logged["subject"], logged["actor"]) == (REASON, f"run:{run.pk}", "user:alice")
    known = {"state": "pays_wrong", "pays_wrong": held.pays_wrong, "probe": {"id": held.pk, "digest": held.digest}}
    assert logged["data"] == {"config_digest": run.config_digest, **known}
    assert entry("run_submitted")["data"]["reward_probe"] == known


def test_an_unprobed_reward_launches_and_that_is_kept(maker: Maker, verifier_version: VerifierVersion) -> None:
    run = draft(maker, verifier_version)
    run_submit(run=run, actor=maker.actor, probe_override=REASON)
    launch = noted(run)
    assert (launch.probe, launch.state) == (None, "unprobed")
    assert (launch.overridden, launch.reason) == (False, ""), "nothing asked for a reason"
    assert entry("run_submitted")["data"]["reward_probe"] == {"state": "unprobed", "pays_wrong": [], "probe": None}
    assert not AuditEntry.objects.filter(kind="hold_back_overridden").exists()
    with pytest.raises(DatabaseError), transaction.atomic():
        LaunchProbe.objects.update(reason="another")


# ---------------------------------------------------------------- the form and the pages


def test_the_form_launches_for_a_reason_that_every_page_tells(
    client_for: ClientFor, oscar: User, bob: User, chosen: dict[str, str], held: VerifierProbe
) -> None:
    client, form = client_for(oscar), chosen | {"verifier_version": str(held.version_id)}
    assert 'id="reward-gate"' in client.post(NEW, form | {"action": "check"}).content.decode()
    refused = client.post(NEW, form | {"action": "launch", "probe_override": "because"})
    assert refused.status_code == 422
    assert ">\nbecause</textarea>" in refused.content.decode(), "what was typed stays"
    assert not Run.objects.exists()
    assert client.post(NEW, form | {"action": "draft"}).status_code == 302, "a draft needs no reason"
    answer: Any = client.post(NEW, form | {"action": "launch", "probe_override": f"{REASON} {HOSTILE}"})
    assert answer.url == f"/p/ours/runs/{Run.objects.latest('pk').pk}/"
    for address in (answer.url, f"/p/ours/rewards/{held.version.verifier_id}/"):
        page = client_for(bob).get(address).content.decode()
        assert all(part in page for part in (REASON, HOSTILE_SHOWN, "oscar"))
        assert "<script>alert(1)" not in page


def test_a_draft_of_it_asks_for_the_reason_at_its_launch(
    client_for: ClientFor, oscar: User, maker: Maker, held: VerifierProbe
) -> None:
    run = draft(maker, held.version)
    client, address = client_for(oscar), f"/p/ours/runs/{run.pk}/submit/"
    for reason in ({}, {"probe_override": "because"}):
        asked = client.post(address, reason)
        assert asked.status_code == 409
        assert 'name="probe_override"' in asked.content.decode()
    assert client.post(address, {"probe_override": REASON}).status_code == 302
    run.refresh_from_db()
    assert run.state == "queued"


def test_unprobed_is_said_in_plain_sight(client_for: ClientFor, oscar: User, chosen: dict[str, str]) -> None:
    client = client_for(oscar)
    assert "never probed" in client.post(NEW, chosen | {"action": "check"}).content.decode()
    client.post(NEW, chosen | {"action": "launch"})
    assert "not probed" in client.get(f"/p/ours/runs/{Run.objects.get().pk}/").content.decode()
