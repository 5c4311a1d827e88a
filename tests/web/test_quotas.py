"""How much a person and a project may have, also when two come at once: what is refused, in which words, by whom it is
raised."""

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.accounts.services import membership_set, project_create
from cohort.catalog.models import EvalSuiteVersion, PromptDataset
from cohort.catalog.services import dataset_create, uploaded_bytes
from cohort.catalog.suites import starters_add
from cohort.launch.creation import run_submit
from cohort.runs.limits import project_quotas_set
from cohort.runs.models import Run, RunState
from cohort.runs.services import NotPossible, run_resume
from cohort.runs.transitions import run_move
from grpo_core.errors import ConfigError
from tests.factories.runs import UNPROBED, Maker
from tests.web.conftest import PROBLEMS, ClientFor
from tests.web.control import at_once, fresh
from tests.web.pages import html

pytestmark = pytest.mark.django_db
LIMITS = "/p/ours/limits/"


def limit(**quotas: int) -> None:
    Project.objects.filter(slug="ours").update(**quotas)


def waiting() -> int:
    return Run.objects.filter(state="queued").count()


# ---------------------------------------------------------------- projects of a person


def test_a_person_opens_so_many_projects(settings: Any, charlie: User, stranger: Client) -> None:
    settings.COHORT_MAX_PROJECTS = 3  # with `theirs`
    for name in ("first", "second"):
        assert stranger.post("/projects/new/", {"name": name}).url == f"/p/{name}/"
    response = stranger.post("/projects/new/", {"name": "The third", "slug": "third"})
    assert response.status_code == 422
    page = html(response)
    assert "charlie has 3 of at most 3 projects that one person may open." in page
    assert "COHORT_MAX_PROJECTS" in page, "who can raise it, and where"
    assert 'value="The third"' in page, "nothing typed is lost"
    assert not Project.objects.filter(slug="third").exists()


@pytest.mark.django_db(transaction=True)
def test_projects_opened_at_once_are_counted(settings: Any, charlie: User) -> None:
    settings.COHORT_MAX_PROJECTS = 4  # with `theirs`
    acts = [lambda n=number: project_create(slug=f"p{n}", name="P", owner=charlie) for number in range(8)]
    assert sum(at_once(*acts)) == 3
    assert Project.objects.filter(opened_by=charlie).count() == 4


# ---------------------------------------------------------------- uploads


def test_uploads_fill_a_project_and_no_more(ours: Project, alice: User, operator: Client) -> None:
    given = {"project": ours, "actor": alice}
    starters_add(**given, names=["format"])
    assert uploaded_bytes(ours) == sum(
        size for rows in (PromptDataset, EvalSuiteVersion) for size in rows.objects.values_list("size", flat=True)
    )
    limit(max_upload_bytes=uploaded_bytes(ours) + len(PROBLEMS))
    dataset_create(**given, name="fits", format="plain", chunks=[PROBLEMS])
    with pytest.raises(ValidationError) as refused:
        dataset_create(**given, name="no more", format="plain", chunks=[PROBLEMS])
    (words,) = refused.value.message_dict["file"]
    assert f"of at most {uploaded_bytes(ours):,} bytes of datasets and suites, and this has {len(PROBLEMS):,}" in words
    assert not PromptDataset.objects.filter(name="no more").exists()
    with pytest.raises(ValidationError) as refused:
        starters_add(**given)
    assert list(refused.value.message_dict) == ["upload"]


@pytest.mark.django_db(transaction=True)
def test_uploads_at_once_are_counted(ours: Project, alice: User) -> None:
    limit(max_upload_bytes=uploaded_bytes(ours) + 2 * len(PROBLEMS))
    given = {"project": ours, "actor": alice, "format": "plain", "chunks": [PROBLEMS]}
    assert sum(at_once(*(lambda n=number: dataset_create(**given, name=f"d{n}") for number in range(6)))) == 2


# ---------------------------------------------------------------- the queue


def test_a_full_queue_takes_no_run_and_keeps_what_was_typed(
    maker: Maker, operator: Client, chosen: dict[str, str]
) -> None:
    limit(max_waiting_runs=1)
    run_submit(run=maker.run("draft"), actor=maker.actor, probe_override=UNPROBED)
    response = operator.post("/p/ours/runs/new/", {**chosen, "name": "one too many", "action": "launch"})
    assert response.status_code == 422
    page = html(response)
    assert "Our project has 1 of at most 1 runs that wait in the queue. Wait until one of them runs" in page
    assert 'value="one too many"' in page
    draft = maker.run("another")
    page = html(operator.post(f"/p/ours/runs/{draft.pk}/submit/", follow=True))
    assert "Nothing was done: Our project has 1 of at most 1" in page
    assert "Clone the run" not in page
    assert (fresh(draft).state, waiting()) == ("draft", 1)


def test_what_a_person_queues_again_counts_and_what_the_platform_does_not(maker: Maker) -> None:
    paused = maker.run("paused", state="paused")
    training = maker.run("training", state="training")
    limit(max_waiting_runs=1)
    maker.run("waits", state="queued")
    with pytest.raises(NotPossible) as refused:
        run_resume(run=paused, actor=maker.actor)
    assert refused.value.code == "queue_full"
    run_move(run=training, to=RunState.QUEUED, actor="platform")
    assert waiting() == 2


def test_the_runs_of_one_person_in_all_projects_are_counted(settings: Any, maker: Maker, oscar: User) -> None:
    settings.COHORT_MAX_PERSON_WAITING_RUNS = 1
    run_submit(run=maker.run("first"), actor=maker.actor, probe_override=UNPROBED)
    draft = maker.run("second")
    with pytest.raises(ConfigError, match="alice has 1 of at most 1 runs"):
        run_submit(run=draft, actor=oscar, probe_override=UNPROBED)
    Run.objects.filter(pk=draft.pk).update(created_by=oscar)
    run_submit(run=fresh(draft), actor=maker.actor, probe_override=UNPROBED)


@pytest.mark.django_db(transaction=True)
def test_runs_queued_at_once_are_counted(maker: Maker) -> None:
    limit(max_waiting_runs=3)
    drafts = [maker.run(f"draft {number}") for number in range(8)]
    acts = [lambda run=draft: run_submit(run=run, actor=maker.actor, probe_override=UNPROBED) for draft in drafts]
    assert sum(at_once(*acts)) == 3
    assert waiting() == 3


# ---------------------------------------------------------------- who sets them


def test_who_manages_the_server_sets_another_number_for_a_project(
    admin: Client, viewer: Client, ours: Project, alice: User, bob: User, client_for: ClientFor
) -> None:
    page = html(viewer.get(LIMITS))
    assert "of 500" in page
    assert "of 53.7\u00a0GB" in page
    sent = {"quotas": "1", "max_waiting_runs": "7", "max_members": "", "max_upload_bytes": "", "max_open_jobs": ""}
    assert admin.post(LIMITS, sent).status_code == 302
    assert (fresh(ours).max_waiting_runs, fresh(ours).max_members) == (7, None)
    assert "of 7" in html(viewer.get(LIMITS))
    response = admin.post(LIMITS, {**sent, "max_waiting_runs": "0", "max_members": "12"})
    assert response.status_code == 422
    assert 'value="12"' in html(response)
    assert fresh(ours).max_waiting_runs == 7


def test_an_admin_of_another_project_raises_nothing(stranger: Client) -> None:
    theirs = "/p/theirs/limits/"
    assert "Set the server" not in html(stranger.get(theirs))
    assert stranger.post(theirs, {"quotas": "1", "max_members": "9"}).status_code == 403
    assert Project.objects.get(slug="theirs").max_members is None
    assert stranger.post(theirs, {"max_running": "2"}).status_code == 302


def test_quotas_below_one_are_refused(ours: Project, alice: User) -> None:
    with pytest.raises(ConfigError) as refused:
        project_quotas_set(project=ours, actor=alice, quotas={"max_members": 0, "max_open_jobs": 3})
    assert [problem.path for problem in refused.value.problems] == ["max_members"]
    assert fresh(ours).max_open_jobs is None


def test_a_lower_number_takes_nothing_away(ours: Project, alice: User, charlie: User, admin: Client) -> None:
    before = ours.memberships.count()
    project_quotas_set(project=ours, actor=alice, quotas={"max_members": 1})
    assert ours.memberships.count() == before
    response = admin.post("/p/ours/members/", {"username": "charlie", "role": "viewer"})
    assert response.status_code == 422
    assert f"has {before} of at most 1 members and open invitations" in html(response)
    membership_set(project=ours, actor=None, user=charlie, role="viewer")
