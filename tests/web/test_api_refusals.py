"""What the public API refuses: keys of other calls, people and tokens that may not, bodies that are no request."""

import json
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from cohort.accounts.api_tokens import api_token_revoke
from cohort.accounts.models import ApiToken, Project, Role, User
from cohort.accounts.services import membership_set
from cohort.api.bodies import MAX_DEPTH
from cohort.runs.models import Run
from cohort.server.limits import FORM_BYTES
from tests.factories.runs import Maker
from tests.tables import cases
from tests.web.api_calls import RUNS, ApiCaller, ApiCallerFor, refused
from tests.web.control import at_once

pytestmark = pytest.mark.django_db


# ---------------------------------------------------------------- the same call twice


def test_the_same_key_and_body_make_one_run(caller: ApiCaller, run_body: dict[str, Any]) -> None:
    first = caller.post(run_body, **{"Idempotency-Key": "nightly-1"})
    again = caller.post(dict(reversed(run_body.items())), **{"Idempotency-Key": "nightly-1"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert (again.json(), again["Location"]) == (first.json(), first["Location"])
    assert caller.post(run_body, **{"Idempotency-Key": "nightly-2"}).status_code == 201
    assert caller.post(run_body).status_code == 201
    assert Run.objects.count() == 3


@pytest.mark.parametrize(
    "other", [{"name": "b"}, {"launch": False}, {"priority": "low"}, {"probe_override": "another 10"}]
)
def test_a_key_belongs_to_one_body(caller: ApiCaller, run_body: dict[str, Any], other: dict[str, Any]) -> None:
    caller.post(run_body, **{"Idempotency-Key": "k"})
    answer = refused(caller.post(run_body | other, **{"Idempotency-Key": "k"}))
    assert answer == (409, "idempotency_key_reused", [])
    assert Run.objects.count() == 1


def test_keys_of_others_are_others(
    caller: ApiCaller, caller_for: ApiCallerFor, alice: User, oscar: User, run_body: dict[str, Any], charlie: User
) -> None:
    made = {caller.post(run_body, **{"Idempotency-Key": "k"}).json()["id"]}
    made.add(caller_for(alice).post(run_body | {"name": "b"}, **{"Idempotency-Key": "k"}).json()["id"])
    assert len(made) == 2
    theirs = Project.objects.get(slug="theirs")
    membership_set(project=theirs, actor=charlie, user=oscar, role=Role.OPERATOR)
    there = caller.post(run_body, "/api/v1/projects/theirs/runs", **{"Idempotency-Key": "k"})
    assert refused(there)[1] == "invalid", "no run of ours is the answer there"
    run_body["settings"] = {"optim": {"lr": 0}}
    assert refused(caller.post(run_body, **{"Idempotency-Key": "new"}))[1] == "invalid"
    run_body["settings"] = {"eval": {"holdout": 4}}
    assert caller.post(run_body, **{"Idempotency-Key": "new"}).status_code == 201, "a refused call takes no key"


@pytest.mark.parametrize("key", [" ", "a b", "é", "x" * 256, "a\tb"])
def test_a_key_that_cannot_be_used(caller: ApiCaller, run_body: dict[str, Any], key: str) -> None:
    response = caller.post(run_body, **{"Idempotency-Key": key})
    assert refused(response) == (400, "bad_idempotency_key", [])


@pytest.mark.django_db(transaction=True)
def test_the_same_call_at_once_makes_one_run(caller: ApiCaller, run_body: dict[str, Any]) -> None:
    answers: list[Any] = []
    headers = {"Idempotency-Key": "k"}

    def call() -> None:
        answers.append(ApiCaller(caller.text, Client()).post(run_body, **headers))

    assert all(at_once(*[partial(call) for _ in range(4)]))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 201]
    assert {answer.json()["id"] for answer in answers} == {Run.objects.get().pk}


# ---------------------------------------------------------------- who


def test_a_role_that_may_not_launch(caller_for: ApiCallerFor, bob: User, rita: User, run_body: dict[str, Any]) -> None:
    for user in (bob, rita):
        caller = caller_for(user)
        for path in (RUNS, f"{RUNS}/check"):
            assert refused(caller.post(run_body, path)) == (403, "role_too_low", [])
    assert not Run.objects.exists()


def test_a_stranger_learns_of_no_project(
    caller_for: ApiCallerFor, charlie: User, run_body: dict[str, Any], maker: Maker
) -> None:
    caller, run = caller_for(charlie), maker.run()
    for slug in ("ours", "nothing", "%00"):
        address = f"/api/v1/projects/{slug}/runs"
        for answer in (caller.post(run_body, address), caller.post(b"{", address), caller.get(f"{address}/{run.pk}")):
            assert refused(answer) == (404, "not_found", [])


def test_a_scope_that_is_too_small(caller_for: ApiCallerFor, oscar: User, run_body: dict[str, Any]) -> None:
    caller = caller_for(oscar, "read")
    assert refused(caller.post(run_body)) == (403, "scope_too_small", [])
    assert not Run.objects.exists()


def test_tokens_that_do_not_work(caller: ApiCaller, oscar: User, operator: Client, run_body: dict[str, Any]) -> None:
    address, content = RUNS, json.dumps(run_body)
    token = ApiToken.objects.get()
    good = f"Bearer {caller.text}"

    def answered(**headers: str) -> tuple[int, str, list[str]]:
        response = operator.post(address, content, content_type="application/json", headers=headers)
        assert response["WWW-Authenticate"] == "Bearer"
        return refused(response)

    for header in (None, "", "Bearer", "Bearer x", f"Basic {caller.text}", good[:-1] + "x", f"{good} {good}"):
        headers = {} if header is None else {"Authorization": header}
        assert answered(**headers) == (401, "bad_token", []), "nor by the session's cookie"
    ApiToken.objects.filter(pk=token.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert answered(Authorization=good) == (401, "bad_token", [])
    ApiToken.objects.filter(pk=token.pk).update(expires_at=timezone.now() + timedelta(days=1))
    User.objects.filter(pk=oscar.pk).update(password_handed_out=True)
    assert answered(Authorization=good) == (401, "bad_token", [])
    User.objects.filter(pk=oscar.pk).update(password_handed_out=False)
    api_token_revoke(token=token, actor=oscar)
    assert answered(Authorization=good) == (401, "bad_token", [])
    assert not Run.objects.exists()


def test_a_token_is_in_no_log(caller: ApiCaller, run_body: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    caller.post(run_body)
    caller.post(run_body | {"name": ""})
    ApiCaller(caller.text[:-1] + "x", Client()).post(run_body)
    assert caller.text[:-1].rpartition("_")[2] not in caplog.text


# ---------------------------------------------------------------- bodies


@pytest.mark.parametrize(("text", "status"), cases("api/bodies", "body", "status"))
def test_a_body_that_is_no_request(caller: ApiCaller, text: str, status: int) -> None:
    code = {400: "unreadable_body", 422: "invalid"}[status]
    assert refused(caller.post(text.encode()))[:2] == (status, code)


def test_bodies_of_bytes(caller: ApiCaller, run_body: dict[str, Any]) -> None:
    good = json.dumps(run_body).encode()
    digits = good.replace(b'"holdout": 4', b'"holdout": ' + b"9" * 10_000)
    for content in (b"\xff", good.decode().encode("utf-16"), b"\xef\xbb\xbf" + good, b"[" * 100_000, digits):
        assert refused(caller.post(content)) == (400, "unreadable_body", [])
    for kind in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x"):
        assert refused(caller.post(good, kind=kind)) == (415, "not_json", [])
    assert caller.post(good, kind="application/json; charset=utf-8").status_code == 201


def test_nesting(caller: ApiCaller, run_body: dict[str, Any]) -> None:
    def nested(levels: int) -> bytes:
        """Below the run_body, its settings and a part of them."""
        kwargs = '{"a": ' * (levels - 3) + "1" + "}" * (levels - 3)
        return json.dumps(run_body | {"settings": {"data": "HERE"}}).replace('"HERE"', kwargs).encode()

    run_body["launch"] = False
    for levels in (MAX_DEPTH + 2, 1000, 50_000):
        assert refused(caller.post(nested(levels))) == (400, "unreadable_body", [])
    assert refused(caller.post(nested(MAX_DEPTH)))[1] == "invalid"


def test_a_body_that_is_too_large(caller: ApiCaller, run_body: dict[str, Any]) -> None:
    run_body["settings"] = {"data": {"template": "x" * FORM_BYTES}}
    assert refused(caller.post(run_body)) == (413, "too_large", [])
    chunked = caller.client.post(RUNS, b"{}", content_type="application/json", headers={"Transfer-Encoding": "chunked"})
    assert refused(chunked) == (411, "length_required", [])


def test_many_faults_are_counted(caller: ApiCaller, run_body: dict[str, Any]) -> None:
    """Also in time that grows with the run_body alone."""
    suites = [{"suite": f"{number % 9000}@1"} for number in range(20_000)]
    fields = refused(caller.post(run_body | {"suites": suites}))[2]
    assert len(fields) == 101
    errors = caller.post(run_body | {f"f{number}": 1 for number in range(20_000)}).json()["errors"]
    assert errors[-1] == {"field": "", "message": "and 19,900 more"}
    twice = b'{%s, "n7": 1}' % b", ".join(b'"n%d": 1' % number for number in range(50_000))
    assert refused(caller.post(twice)) == (400, "unreadable_body", [])


@pytest.mark.parametrize("value", [2**53, 2**70, -(2**60)])
def test_a_whole_number_beyond_a_double(caller: ApiCaller, run_body: dict[str, Any], value: int) -> None:
    run_body["settings"] = {"eval": {"holdout": 4}, "data": {"chat_template_kwargs": {"a": value}}}
    assert refused(caller.post(run_body)) == (422, "invalid", [""])
