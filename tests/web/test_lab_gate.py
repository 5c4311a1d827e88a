"""The hold-back: a reward known to pay wrong answers launches only for a reason, which is kept and shown."""

import json
from collections.abc import Callable

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


def entry(kind: str) -> dict[str, object]:
    (found,) = [json.loads(bytes(one.body)) for one in AuditEntry.objects.filter(kind=kind)]
    return dict(found)


# ---------------------------------------------------------------- the service


def test_a_probe_on_the_same_dataset_counts_more_than_a_newer_one(
    ours: Project, oscar: User, dataset: PromptDataset, heldout: PromptDataset, verifier_version: VerifierVersion
) -> None:
    assert gate(verifier_version, dataset).state == "unprobed"
    other = probed(verifier_version, oscar, heldout)
    assert gate(verifier_version, dataset).probe == other, (
        "the newest of the version, where there is none of the dataset"
    )
    mine = probed(verifier_version, oscar, dataset)
    probed(verifier_version, oscar, heldout)
    assert gate(verifier_version, dataset).probe == mine
    newest = probed(verifier_version, oscar, dataset)
    assert gate(verifier_version, dataset).probe == newest
    assert gate(format_only(ours, oscar), dataset).state == "unprobed", "nothing is known of another version"


@pytest.mark.parametrize("reason", ["", "   ", "because", "  too short  "[:11]])
def test_without_a_reason_nothing_is_launched(maker: Maker, held: VerifierProbe, reason: str) -> None:
    run = draft(maker, held.version)
    with pytest.raises(ConfigError) as refused:
        run_submit(run=run, actor=maker.actor, probe_override=reason)
    (fault,) = refused.value.problems
    assert fault.path == "probe_override"
    assert fault.message.startswith("held back: the verifier pays ")
    run.refresh_from_db()
    assert run.state == "draft"
    assert not LaunchProbe.objects.exists()
    assert not AuditEntry.objects.filter(kind__in=["run_submitted", "hold_back_overridden"]).exists()


def test_a_reason_is_kept_with_what_was_known(maker: Maker, held: VerifierProbe) -> None:
    run = draft(maker, held.version)
    run_submit(run=run, actor=maker.actor, probe_override=f"  {REASON} ")
    run.refresh_from_db()
    noted = launch_of(run)
    assert run.state == "queued"
    assert noted is not None
    assert (noted.probe, noted.state, noted.overridden, noted.reason) == (held, "pays_wrong", True, REASON)
    assert (noted.by, noted.pays_wrong) == (maker.actor, held.pays_wrong)
    told = entry("hold_back_overridden")
    assert (told["reason"], told["subject"], told["actor"]) == (REASON, f"run:{run.pk}", "user:alice")
    known = {"state": "pays_wrong", "pays_wrong": held.pays_wrong, "probe": {"id": held.pk, "digest": held.digest}}
    assert told["data"] == {"config_digest": run.config_digest, **known}
    assert entry("run_submitted")["data"]["reward_probe"] == known  # type: ignore[index]


def test_an_unprobed_reward_launches_and_that_is_kept(maker: Maker) -> None:
    run = maker.launched("unprobed", eval={"holdout": 4})
    noted = launch_of(run)
    assert noted is not None
    assert (noted.probe, noted.state, noted.overridden, noted.reason) == (None, "unprobed", False, "")
    assert entry("run_submitted")["data"]["reward_probe"] == {  # type: ignore[index]
        "state": "unprobed",
        "pays_wrong": [],
        "probe": None,
    }


def test_a_reason_that_nothing_asks_for_overrides_nothing(maker: Maker, verifier_version: VerifierVersion) -> None:
    run = draft(maker, verifier_version)
    run_submit(run=run, actor=maker.actor, probe_override=REASON)
    noted = launch_of(run)
    assert noted is not None
    assert (noted.overridden, noted.reason) == (False, "")
    assert not AuditEntry.objects.filter(kind="hold_back_overridden").exists()


def test_what_was_known_is_never_changed(maker: Maker) -> None:
    maker.launched("unprobed", eval={"holdout": 4})
    with pytest.raises(DatabaseError), transaction.atomic():
        LaunchProbe.objects.update(reason="another")


def test_a_reason_of_any_length_is_kept_or_refused_whole(maker: Maker, held: VerifierProbe) -> None:
    with pytest.raises(ConfigError, match=r"5,001 characters; 5,000 at most"):
        run_submit(run=draft(maker, held.version), actor=maker.actor, probe_override="x" * 5_001)
    assert not LaunchProbe.objects.exists()


# ---------------------------------------------------------------- the form and the pages


@pytest.fixture
def form(chosen: dict[str, str], held: VerifierProbe) -> dict[str, str]:
    return chosen | {"verifier_version": str(held.version_id)}


def test_the_form_says_that_it_is_held_back(client_for: ClientFor, oscar: User, form: dict[str, str]) -> None:
    client = client_for(oscar)
    page = client.post(NEW, form | {"action": "check"}).content.decode()
    assert 'id="reward-gate"' in page
    assert "held back: the reward pays" in page
    assert "Probe: pays " in page
    refused = client.post(NEW, form | {"action": "launch"})
    assert refused.status_code == 422
    assert "Held back: the verifier pays" in refused.content.decode()
    short = client.post(NEW, form | {"action": "launch", "probe_override": "because"})
    assert "7 of the 10 characters" in short.content.decode()
    assert ">\nbecause</textarea>" in short.content.decode(), "what was typed stays"
    assert not Run.objects.exists()
    saved = client.post(NEW, form | {"action": "draft"})
    assert saved.status_code == 302, "a draft needs no reason"


def test_launched_from_the_form_for_a_reason_that_every_page_tells(
    client_for: ClientFor, oscar: User, bob: User, form: dict[str, str], held: VerifierProbe
) -> None:
    reason = f"{REASON} {HOSTILE}"
    answer = client_for(oscar).post(NEW, form | {"action": "launch", "probe_override": reason})
    run = Run.objects.get()
    assert answer.url == f"/p/ours/runs/{run.pk}/"
    for address in (f"/p/ours/runs/{run.pk}/", f"/p/ours/rewards/{held.version.verifier_id}/"):
        page = client_for(bob).get(address).content.decode()
        assert REASON in page
        assert HOSTILE_SHOWN in page
        assert "<script>alert(1)" not in page
        assert "oscar" in page


def test_a_draft_of_it_asks_for_the_reason_at_its_launch(
    client_for: ClientFor, oscar: User, bob: User, maker: Maker, held: VerifierProbe
) -> None:
    run = draft(maker, held.version)
    client, address = client_for(oscar), f"/p/ours/runs/{run.pk}/submit/"
    assert client_for(bob).post(address, {"probe_override": REASON}).status_code == 403
    asked = client.post(address)
    assert asked.status_code == 409
    assert 'name="probe_override"' in asked.content.decode()
    assert client.post(address, {"probe_override": "because"}).status_code == 409
    done = client.post(address, {"probe_override": REASON})
    assert done.status_code == 302
    run.refresh_from_db()
    assert run.state == "queued"


def test_unprobed_is_said_in_plain_sight(client_for: ClientFor, oscar: User, chosen: dict[str, str]) -> None:
    client = client_for(oscar)
    page = client.post(NEW, chosen | {"action": "check"}).content.decode()
    assert "The reward was never probed" in page
    client.post(NEW, chosen | {"action": "launch"})
    shown = client.get(f"/p/ours/runs/{Run.objects.get().pk}/").content.decode()
    assert "not probed" in shown


def test_a_stranger_sees_nothing_of_it(client_for: ClientFor, charlie: User, maker: Maker, held: VerifierProbe) -> None:
    run = draft(maker, held.version)
    sent = {"probe_override": REASON}
    assert client_for(charlie).post(f"/p/ours/runs/{run.pk}/submit/", sent).status_code == 404
    assert client_for(charlie).get(f"/p/ours/lab/jobs/{held.job_id}/").status_code == 404
