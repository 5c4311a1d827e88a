"""The public API: a run made, checked and fetched by script, as its person could in the form."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from cohort.accounts.models import ApiToken, Project, Role, User
from cohort.accounts.services import membership_set
from cohort.api import views
from cohort.api.problems import TITLES
from cohort.audit.models import AuditEntry
from cohort.catalog.models import PromptDataset
from cohort.catalog.services import base_model_register, dataset_create, verifier_version_create
from cohort.contamination.selectors import of_choice, token
from cohort.contamination.services import check, request_comparisons
from cohort.runs.models import Run, RunEvent
from tests.factories.runs import UNPROBED, Maker
from tests.factories.suites import add_suite
from tests.tables import cases
from tests.web.api_calls import RUNS, ApiCaller, ApiCallerFor, refused
from tests.web.form_page import as_browser
from tests.web.run_page import queries

pytestmark = pytest.mark.django_db


def entry(kind: str) -> Any:
    return json.loads(bytes(AuditEntry.objects.filter(kind=kind).latest("pk").body))


def test_a_call_launches_its_run_in_the_name_of_its_person(
    caller: ApiCaller, oscar: User, run_body: dict[str, Any]
) -> None:
    response = caller.post(run_body)
    assert response.status_code == 201
    made, run = response.json(), Run.objects.get()
    assert (run.state, run.name, run.created_by, run.project.slug) == ("queued", "adder", oscar, "ours")
    assert made["id"] == run.pk
    assert (made["state"], made["config_digest"]) == ("queued", run.config_digest)
    assert made["url"] == f"http://testserver/p/ours/runs/{run.pk}/"
    assert caller.get(response["Location"]).json()["id"] == run.pk
    token = ApiToken.objects.get()
    for kind in ("run_created", "run_submitted"):
        written = entry(kind)
        assert written["actor"] == "user:oscar"
        assert written["data"]["api_token"] == {"name": "ci", "prefix": token.prefix}
    written = str([*AuditEntry.objects.values_list("body"), *RunEvent.objects.values_list("data")])
    assert caller.text.rpartition("_")[2] not in written
    assert run.launch_probes.get().reason == UNPROBED


def test_without_launch_it_is_a_draft(caller: ApiCaller, run_body: dict[str, Any]) -> None:
    del run_body["launch"], run_body["probe_override"]
    assert caller.post(run_body).json()["state"] == "draft"
    assert not AuditEntry.objects.filter(kind="run_submitted").exists()


def test_it_is_the_run_that_the_form_makes(
    caller: ApiCaller,
    operator: Client,
    chosen: dict[str, str],
    heldout: PromptDataset,
    run_body: dict[str, Any],
    maker: Maker,
) -> None:
    suite = add_suite(maker.project, maker.actor)
    page = operator.get("/p/ours/runs/new/?preset=dapo").content.decode()
    sent = {"optim.lr": "3e-4", "eval_dataset": str(heldout.pk), "eval.holdout": "0", f"suite.{suite.pk}": "true"}
    placed = {"priority": "10", "node_label": "a100", "action": "launch"}
    assert operator.post("/p/ours/runs/new/", as_browser(page) | chosen | sent | placed).status_code == 302
    run_body |= {
        "settings": {"preset": "dapo", "optim": {"lr": 3e-4}, "eval": {"holdout": 0}},
        "eval_dataset": "held out",
    }
    run_body |= {"suites": [{"suite": "capitals@1"}], "priority": "high", "node_label": "a100"}
    assert caller.post(run_body).status_code == 201
    one, other = Run.objects.order_by("pk")
    for name in ("config", "config_digest", "priority", "node_label", "eval_dataset", "state", "preset"):
        assert getattr(one, name) == getattr(other, name), name
    assert one.suites.get() == other.suites.get() == suite


@pytest.mark.parametrize("path", [RUNS, f"{RUNS}/check"])
@pytest.mark.parametrize(
    ("given", "status", "code", "fields"), cases("api/refusals", "given", "status", "code", "fields")
)
def test_a_refusal_names_its_fields(
    caller: ApiCaller,
    run_body: dict[str, Any],
    maker: Maker,
    path: str,
    given: Any,
    status: int,
    code: str,
    fields: list[str],
) -> None:
    add_suite(maker.project, maker.actor)
    response = caller.post(run_body | given, path)
    assert (refused(response)[:2], sorted(refused(response)[2])) == ((status, code), sorted(fields))
    assert not Run.objects.exists()


def test_no_row_of_another_project_is_reached(
    caller: ApiCaller, run_body: dict[str, Any], charlie: User, tiny_model_folder: str
) -> None:
    theirs = Project.objects.get(slug="theirs")
    base_model_register(project=theirs, actor=charlie, name="secret model", path=tiny_model_folder)
    there, nowhere = (caller.post(run_body | {"base_model": name}) for name in ("secret model", "secret modex"))
    assert there.content.replace(b"model'", b"modex'") == nowhere.content


# ---------------------------------------------------------------- what a launch would be refused for


def test_overlaps_are_confirmed_by_what_the_refusal_states(
    caller: ApiCaller, run_body: dict[str, Any], dataset: PromptDataset, heldout: PromptDataset
) -> None:
    request_comparisons(dataset, heldout, [])
    [pair] = of_choice(dataset, heldout, [])
    check(pair.pk)
    seen = token(of_choice(dataset, heldout, []))
    assert seen
    run_body |= {"eval_dataset": "held out", "settings": {"eval": {"holdout": 0}}}
    response = caller.post(run_body)
    assert refused(response)[:2] == (409, "launch_refused")
    assert f'"{seen}"' in response.json()["errors"][-1]["message"]
    made = caller.post(run_body | {"overlap_seen": seen})
    assert made.status_code == 201
    assert caller.get(made["Location"]).json()["request"]["overlap_seen"] == seen


def test_references_that_the_reward_cannot_read(caller: ApiCaller, run_body: dict[str, Any], maker: Maker) -> None:
    rows = b"".join(b'{"prompt": "%d", "answer": "many"}\n' % number for number in range(3))
    given = {"project": maker.project, "actor": maker.actor}
    dataset_create(**given, name="odd", format="plain", chunks=[rows])
    verifier_version_create(**given, name="numeric", spec={"components": [{"name": "r", "kind": "numeric"}]})
    run_body |= {"dataset": "odd", "verifier": "numeric@1", "settings": {"eval": {"holdout": 1}}}
    for path in (RUNS, f"{RUNS}/check"):
        assert refused(caller.post(run_body, path)) == (409, "launch_refused", [""])
    assert caller.post(run_body | {"launch": False}).status_code == 201, "as the form saves it as a draft"


def test_a_full_queue(caller: ApiCaller, run_body: dict[str, Any]) -> None:
    Project.objects.update(max_waiting_runs=1)
    assert caller.post(run_body).status_code == 201
    for path in (RUNS, f"{RUNS}/check"):
        assert refused(caller.post(run_body, path))[:2] == (409, "launch_refused")


def test_a_check_stores_nothing(caller_for: ApiCallerFor, oscar: User, run_body: dict[str, Any]) -> None:
    caller = caller_for(oscar, "read")
    before = AuditEntry.objects.count()
    response = caller.post(run_body, f"{RUNS}/check")
    assert response.status_code == 200
    assert response.json()["config"]["eval"]["holdout"] == 4
    assert (Run.objects.count(), RunEvent.objects.count(), AuditEntry.objects.count()) == (0, 0, before)
    made = caller_for(oscar, name="other").post(run_body)
    assert made.json()["config_digest"] == response.json()["config_digest"]


# ---------------------------------------------------------------- fetched


def test_its_request_makes_the_run_again(caller: ApiCaller, maker: Maker, run_body: dict[str, Any]) -> None:
    add_suite(maker.project, maker.actor, "b-suite")
    add_suite(maker.project, maker.actor, "a-suite")
    suites = [{"suite": "b-suite@1", "margin": None, "limit": 1}, {"suite": "a-suite@1", "template": "Q: {prompt}"}]
    parent = caller.post(run_body).json()["id"]
    made = caller.post(run_body | {"suites": suites, "cloned_from": parent, "eval_verifier": "r1 + exact@1"})
    shown = caller.get(made["Location"]).json()
    assert shown["config"] == Run.objects.get(pk=shown["id"]).config
    request = shown["request"]
    assert [suite["suite"] for suite in request["suites"]] == ["a-suite@1", "b-suite@1"]
    assert (request["launch"], request["cloned_from"], request["probe_override"]) == (True, parent, UNPROBED)
    again = caller.post(request)
    assert again.json()["config_digest"] == shown["config_digest"]
    assert caller.get(again["Location"]).json()["request"] == request


def test_who_reads_a_run(caller_for: ApiCallerFor, bob: User, maker: Maker, charlie: User, oscar: User) -> None:
    run, reader = maker.run(), caller_for(bob, "read")
    assert reader.get(f"{RUNS}/{run.pk}").json()["request"]["launch"] is False
    membership_set(project=Project.objects.get(slug="theirs"), actor=charlie, user=bob, role=Role.ADMIN)
    for address in (f"{RUNS}/{run.pk + 1}", f"{RUNS}/{'9' * 30}", f"/api/v1/projects/theirs/runs/{run.pk}"):
        assert refused(reader.get(address)) == (404, "not_found", [])


def test_a_run_costs_the_same_however_many_suites_it_has(caller: ApiCaller, maker: Maker) -> None:
    def chosen(count: int) -> list[Any]:
        return [{"suite": f"s{number}@1"} for number in range(count)]

    for number in range(8):
        add_suite(maker.project, maker.actor, f"s{number}")
    rows = {"name": "a", "base_model": "tiny", "dataset": "additions", "verifier": "r1 + exact@1"}
    rows |= {"settings": {"eval": {"holdout": 4}}}  # type: ignore[dict-item]
    made, reads = [], []
    for count in (1, 8):
        sent = rows | {"suites": chosen(count)}
        made.append(queries(lambda sent=sent: caller.post(sent)))  # type: ignore[misc]
        address = f"{RUNS}/{Run.objects.latest('pk').pk}"
        reads.append(queries(lambda address=address: caller.get(address)))  # type: ignore[misc]
    assert made[0] == made[1]
    assert reads[0] == reads[1] <= 12


# ---------------------------------------------------------------- the description, and our own faults


def test_openapi(caller: ApiCaller, viewer: Client) -> None:
    address = "/api/v1/openapi.json"
    assert refused(Client().get(address)) == (401, "bad_token", [])
    assert viewer.get(address).json() == caller.get(address).json()
    schema = caller.get(address).json()
    assert set(schema["paths"]) == {
        "/api/v1/projects/{slug}/runs",
        "/api/v1/projects/{slug}/runs/check",
        "/api/v1/projects/{slug}/runs/{run_id}",
        "/api/v1/projects/{slug}/runs/{run_id}/samples",
    }
    text = json.dumps(schema)
    for name in {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}:
        assert name in schema["components"]["schemas"]
    assert schema["components"]["schemas"]["RunRequest"]["required"] == ["name", "base_model", "dataset"]
    post = schema["paths"]["/api/v1/projects/{slug}/runs"]["post"]
    assert list(post["responses"]["422"]["content"]) == ["application/problem+json"]


def test_a_fault_of_ours_is_a_problem_too(
    caller: ApiCaller, maker: Maker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(run: Run) -> None:
        raise RuntimeError("by the test")

    monkeypatch.setattr(views, "request_of", fails)
    caller.client.raise_request_exception = False
    run = maker.run()
    assert refused(caller.get(f"{RUNS}/{run.pk}")) == (500, "internal_error", [])
    assert "by the test" in caplog.text


def test_an_address_that_there_is_not(caller: ApiCaller, settings: Any) -> None:
    settings.DEBUG = False
    for address in ("/api/v1/", "/api/v1/runs", f"{RUNS}/", f"{RUNS}/x"):
        assert refused(caller.get(address)) == (404, "not_found", [])
    assert caller.client.put(RUNS).status_code == 405


def test_every_code_is_in_the_docs() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    assert [code for code in TITLES if f"| `{code}` |" not in docs] == []
