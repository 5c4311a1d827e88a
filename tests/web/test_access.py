"""Every address of the URLconf: who gets which answer, by tests/cases/access/ (an address in no table fails), that no
form is taken without its token and no text runs, and that nothing of a project is reached through another one, by ids
beyond any column or by any query string."""

import itertools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import md5
from typing import Any
from urllib.parse import quote

import pytest
from django.conf import settings
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from pytest_django import DjangoDbBlocker

from cohort.accounts.api_tokens import api_token_create
from cohort.accounts.invitations import invitation_make
from cohort.accounts.models import Membership, User
from cohort.alerts.models import Alert, AlertDelivery
from cohort.alerts.opening import alerts_check
from cohort.alerts.rules import rule_create
from cohort.audit import services as audit
from cohort.audit.models import AuditEntry
from cohort.catalog.models import ProbeCase, PromptDataset, VerifierVersion
from cohort.catalog.probe_cases import probe_case_add
from cohort.catalog.services import dataset_create
from cohort.lab.models import ChatAnswer, LabJob
from cohort.nodes.models import Node
from cohort.pipelines.models import Pipeline
from cohort.pipelines.services import pipeline_create
from cohort.records.after_seal.services import public_link_make
from cohort.records.models import PipelineCardRequest, Record
from cohort.records.pipeline_cards import Stage, pipeline_card
from cohort.records.policies.services import policy_save
from cohort.records.statements.services import statement_make
from cohort.review.filters import SampleFilter
from cohort.review.labels import label_add
from cohort.review.models import Group, ReviewQueue
from cohort.review.problems import problem_key
from cohort.review.queues import queue_create
from cohort.runs.charts import chart_create
from cohort.runs.models import Checkpoint, Run, Sweep
from cohort.runs.run_values import evaluation_values_store
from cohort.runs.saved_views import view_save
from grpo_core.data.problem import Problem
from tests.database import Databases
from tests.factories.alerts import any_cause, diagnosed, webhook
from tests.factories.lab import evaluated, sampled, talked
from tests.factories.rescores import rescored
from tests.factories.runs import HOSTILE, HOSTILE_SHOWN, Maker, add_evaluation, add_group, add_steps
from tests.factories.stock import R1_EXACT
from tests.factories.suites import add_suite
from tests.tables import FOLDER, cases

NAMES = {"admin": "alice", "operator": "oscar", "reviewer": "rita", "viewer": "bob", "stranger": "charlie"}
ROLES = (*NAMES, "anonymous")
FIELDS = ("url", "method", "kwargs", "data", *ROLES)
TABLES = sorted(path.stem for path in (FOLDER / "access").glob("*.yaml"))
CASES = [dict(zip(FIELDS, case.values, strict=True)) for table in TABLES for case in cases(f"access/{table}", *FIELDS)]
METHODS = {"get", "post", "put", "delete"}
SECRETS = (b"Our project", b"Two-digit addition")
HUGE = "9" * 30
HOSTILE_TEXT = HOSTILE.replace("\x07", "")
POLICY = json.dumps(
    {"schema": "cohort-policy/1", "name": "<script>alert(1)</script>", "rules": [{"name": "<b>a", "rule": "ended"}]}
)
FIXED = {"slug": "ours", "end": 1, "version": 1, "audience": "public", "index": 0, "at": 0, "attempt_id": 1} | {
    "sha256": "0" * 64
}
ODD = (HUGE, "%00", "9" * 18, "-1", "%D9%A3", "%C2%B2", "9999-12-31", "0001-01-01", "1e999", "%ED%A0%80", "a%00b")
"""As they stand in an address: also a digit and an exponent of other scripts, the ends of time, half a surrogate."""
QUERIES = (
    ("before", "after", "step", "from", "sample", "version", "page", "items", "checkpoints", "waiting"),
    ("clone", "since"),
    ("record", "format", "signed", "verdict", "until", "size", "dataset", "epoch", "issue"),
    ("variant", "preset", "tab", "show", "state", "q", "v", "suite", "example", "all", "evals"),
    ("sort", "columns", "after", "before", "q"),
    ("state", "rule", "run", "before"),
    ("actor", "kind", "subject", "to", "records", "imported", "superseded", "running", "texts"),
    ("model", "find", "against", "evaluations", "answer"),
    ("a", "b", "pick", "pick_b", "sort"),
)

pytestmark = pytest.mark.django_db


def routes(resolver: URLResolver, prefix: str = "") -> Iterator[str]:
    """Every address of the URLconf, as p/<slug>/runs/<run_id>/."""
    for pattern in resolver.url_patterns:
        route = prefix + PARAMETER.sub(r"<\1>", str(pattern.pattern))
        if isinstance(pattern, URLPattern):
            yield route
        else:
            yield from routes(pattern, route)


PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>")
ALL = list(routes(get_resolver()))
OF_A_PROJECT = [route for route in ALL if route.startswith("p/<slug>/")]
WITH_IDS = [route for route in OF_A_PROJECT if len(PARAMETER.findall(route)) > 1]


class World:
    """The stock `sealed`, one of all else, and rows full of what no page may let run."""

    def __init__(self) -> None:
        self.users = {role: User.objects.get(username=name) for role, name in NAMES.items()}
        admin = self.users["admin"]
        record = Record.objects.get()
        self.run, ours = record.run, record.run.project
        self.base_model, self.dataset, self.version = self.run.base_model, self.run.dataset, self.run.verifier_version
        statement_make(run=self.run, actor=admin, field="method.rationale", text="as in the demo")
        maker = Maker(ours, admin, self.base_model, self.dataset, self.version)
        self.draft = maker.run("draft")
        self.suite = add_suite(ours, admin).suite
        self.job = sampled(self.version, admin, self.dataset, self.base_model, groups=["rw"])
        self.rescore = rescored(self.run, self.version, admin)
        self.chat = talked(admin, "2 + 3 =", {"model": "5"}, base_model=self.base_model)
        rule = rule_create(project=ours, actor=admin, name="mine", condition="ended")
        channel = webhook(ours, admin, "https://example.org/hook")
        self.hostile = self._hostile(maker)
        self.estimate = LabJob.objects.create(
            project=ours, kind="estimate", spec=R1_EXACT, state="waiting", created_by=admin
        )
        self.preview = LabJob.objects.create(
            project=ours, kind="preview", spec=R1_EXACT, state="waiting", created_by=admin
        )
        self.probe = LabJob.objects.create(project=ours, kind="probe", spec=R1_EXACT, state="waiting", created_by=admin)
        self.pipeline = self._pipeline("mine", admin, self.version)
        card = pipeline_card(project=ours, title="mine", stages=[Stage("only", record)], actor=admin)
        PipelineCardRequest.objects.create(pipeline=self.pipeline, by=admin, card=card)
        token = public_link_make(record=record, actor=admin).token
        policy_save(project=ours, actor=admin, text=POLICY, reason=HOSTILE_TEXT, demanded=False, seen=0)
        audit.checkpoint()

        self.pks = {"/models/": self.base_model.pk, "/datasets/": self.dataset.pk, "/suites/": self.suite.pk}
        self.known = {
            **FIXED,
            "run_id": self.run.pk,
            "membership_id": Membership.objects.get(user=self.users["viewer"]).pk,
            "invitation_id": invitation_make(project=ours, actor=admin, username="dora", role="viewer").pk,
            "user_id": self.users["viewer"].pk,
            "node_id": Node.objects.order_by("pk")[0].pk,
            "entry_id": AuditEntry.objects.filter(project="ours")[0].pk,
            "hint": next(iter(audit.model_key_notes())),
            "job_id": self.job.pk,
            "pipeline_id": self.pipeline.pk,
            "stage": "only",
            "card_id": card.pk,
            "sweep_id": Sweep.objects.create(project=ours, name="s", fields={}, created_by=admin).pk,
            "group_id": self.run.groups.order_by("pk")[0].pk,
            "key": key_of(self.run.groups.order_by("pk")[0]),
            "rescore_id": self.rescore.pk,
            "rule_id": rule.pk,
            "channel_id": channel.pk,
            "alert_id": Alert.objects.get().pk,
            "chart_id": chart_create(project=ours, actor=admin, title="mine", metrics=["reward"]).pk,
            "checkpoint_id": Checkpoint.objects.filter(run=self.run).order_by("pk")[0].pk,
            "token": token,
            "seal": record.seal,
            "name": "STATUS.html",
            "token_id": api_token_create(user=admin, name="ci", scope="launch")[0].pk,
            "chat_id": self.chat.pk,
            "answer_id": ChatAnswer.objects.get(message__conversation=self.chat).pk,
            "case_id": self._case(admin).pk,
            "number": 1,
            "queue_id": self._queue(self.run, admin).pk,
            "label_id": label_add(project=ours, actor=admin, letter="s", word="mine").pk,
            "view_id": view_save(project=ours, actor=self.users["admin"], name="shared", query="", shared=True).pk,
        }
        self.sessions = {role: self._signed_in(user) for role, user in self.users.items()}

    def _case(self, admin: User) -> ProbeCase:
        problem = Problem("hostile", HOSTILE, HOSTILE)
        given = {"verifier": self.version.verifier, "actor": admin, "problem": problem, "completion": HOSTILE}
        return probe_case_add(**given, right=False, source={"chat": self.chat.pk, "message": 1})

    def _pipeline(self, name: str, admin: User, version: VerifierVersion) -> Pipeline:
        """One stage, `only`."""
        reward = json.dumps(f"{version.verifier.name}@{version.number}")
        rows = f"model: {{path: {self.base_model.name}}}, data: {{path: {self.dataset.name}}}, reward: {reward}"
        text = f"name: {name}\nstages: {{only: {{{rows}, eval: {{holdout: 4}}}}}}\n"
        return pipeline_create(project=version.verifier.project, actor=admin, text=text)

    @staticmethod
    def _queue(run: Run, actor: User) -> ReviewQueue:
        """Not blind, so that the group's page is as without it."""
        return queue_create(run=run, actor=actor, name="mine", samples=SampleFilter(), size=2, blind=False)

    @staticmethod
    def _hostile(maker: Maker) -> dict[str, Any]:
        """A run, a dataset and a suite with hostile texts in every place that people and models write to."""
        run = maker.run(HOSTILE, state="training")
        attempt = maker.attempt(run)
        add_steps(attempt, [{"reward": 0.5}])
        any_cause(run.project)
        diagnosed(attempt, HOSTILE, text=HOSTILE, advice=HOSTILE)
        assert alerts_check() == 1
        AlertDelivery.objects.update(error=HOSTILE)
        texts = {"prompt": HOSTILE, "answer": HOSTILE, "completion": HOSTILE, "detail": HOSTILE}
        group = add_group(attempt, [1.0, 0.0], **texts)
        for phase, scores in (("before", [0, 1]), ("after", [1, 1])):
            add_evaluation(attempt, phase, scores, suite=HOSTILE, completion=HOSTILE)
        Run.objects.filter(pk=run.pk).update(reason=HOSTILE, log_tail=HOSTILE, note=HOSTILE)
        evaluation_values_store(run_id=run.pk)
        given, text = {"project": maker.project, "actor": maker.actor}, HOSTILE.replace("\x07", "")
        problem = {"id": text, "prompt": text, "answer": text, "target": text, "slice": text}
        line = json.dumps(problem).encode()
        dataset = dataset_create(**given, name="hostile", format="plain", chunks=[line], source=text)
        PromptDataset.objects.filter(pk=dataset.pk).update(name=text)
        suite = add_suite(*given.values(), "hostile", content=line).suite
        chat = talked(maker.actor, HOSTILE, {"model": HOSTILE}, base_model=maker.base_model)
        evaluation = evaluated(maker.base_model, maker.actor, suite.versions.get(), [0.0], completion=HOSTILE)
        return {
            "run_id": run.pk,
            "group_id": group.pk,
            "key": key_of(group),
            "queue_id": World._queue(run, maker.actor).pk,
            "datasets": dataset.pk,
            "suites": suite.pk,
            "chat_id": chat.pk,
            "job_id": evaluation.pk,
        }

    @staticmethod
    def _signed_in(user: User) -> str:
        client = Client()
        client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
        return client.cookies[settings.SESSION_COOKIE_NAME].value

    def client(self, role: str, **how: bool) -> Client:
        client = Client(**how)
        if role in self.sessions:
            client.cookies[settings.SESSION_COOKIE_NAME] = self.sessions[role]
        return client

    def address(self, route: str, **other: Any) -> str:
        """Of something that exists in `ours`."""
        known = {**self.known, **other}
        if "pk" not in other:
            known["pk"] = next((pk for kind, pk in self.pks.items() if kind in route), self.version.verifier_id)
        if route.endswith("/submit/"):
            known["run_id"] = other.get("run_id", self.draft.pk)
        if "/estimates/" in route:
            known["job_id"] = other.get("job_id", self.estimate.pk)
        if "/previews/" in route:
            known["job_id"] = other.get("job_id", self.preview.pk)
        if "/probes/" in route:
            known["job_id"] = other.get("job_id", self.probe.pk)
        if "/server/" in route:
            known["entry_id"] = other.get("entry_id", AuditEntry.objects.filter(project="")[0].pk)
        return "/" + PARAMETER.sub(lambda match: str(known[match[1]]), route)


def key_of(group: Group) -> str:
    """Of its problem, in an address."""
    return quote(problem_key(md5(group.prompt.encode()).hexdigest(), group.problem_id))


@contextmanager
def rolled_back() -> Iterator[None]:
    """What the block changes is withdrawn; as in Django's own test cases, durable blocks may lie inside."""
    block = transaction.atomic()
    block._from_testcase = True  # type: ignore[attr-defined]
    with block:
        yield
        transaction.set_rollback(True)


@pytest.fixture(scope="module")
def sealed_site(django_db_setup: Databases, django_db_blocker: DjangoDbBlocker) -> Iterator[World]:
    """Made once; each test and each request is rolled back to it."""
    with django_db_blocker.unblock():
        django_db_setup.shared("sealed")
        with rolled_back():
            yield World()


def answer(client: Client, method: str, address: str, data: Any = None) -> tuple[int | str, bytes]:
    """(status, or "login" for the way to the sign-in page; what was sent). What it changed is withdrawn."""
    with rolled_back():
        response = getattr(client, method)(address, data or {})
        content = b"".join(response) if response.streaming else response.content
    to_sign_in = response.status_code == 302 and response.headers["Location"].startswith("/login/?next=")
    return "login" if to_sign_in else response.status_code, content


def test_every_address_is_in_a_table() -> None:
    assert {case["url"] for case in CASES} == set(ALL)


BY_A_SECRET = ("c/", "status/")
"""For whoever holds a token, or the seal, which is in every card."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['method']} {case['url']}")
def test_who_gets_which_answer(sealed_site: World, case: dict[str, Any]) -> None:
    address, answers = sealed_site.address(case["url"], **case["kwargs"] or {}), {}
    for role in ROLES:
        answers[role], content = answer(sealed_site.client(role), case["method"], address, case["data"])
        if role in ("stranger", "anonymous") and not case["url"].startswith(BY_A_SECRET):
            assert not any(secret in content for secret in SECRETS)
    assert answers == {role: case[role] for role in ROLES}


def test_methods_that_are_in_no_table_are_closed(sealed_site: World) -> None:
    wrong = []
    for route in ALL:
        listed = [case for case in CASES if case["url"] == route]
        shut = "login" if all(case["anonymous"] == "login" for case in listed) else 405
        taken = {"put"} if route == "login/" else set()  # Django's form views take it as POST
        for method in sorted(METHODS - taken - {case["method"] for case in listed}):
            code, _ = answer(sealed_site.client("anonymous"), method, sealed_site.address(route))
            if code != shut:
                wrong.append((method, route, code))
            if route in OF_A_PROJECT:
                code, _ = answer(sealed_site.client("stranger"), method, sealed_site.address(route))
                if code not in (404, 405):
                    wrong.append((method, route, code))
    assert wrong == []


def test_every_form_needs_its_token(sealed_site: World) -> None:
    client, taken = sealed_site.client("admin", enforce_csrf_checks=True), []
    for case in CASES:
        if case["method"] == "post" and not case["url"].startswith("api/"):
            status, _ = answer(client, "post", sealed_site.address(case["url"], **case["kwargs"] or {}), case["data"])
            taken += [] if status == 403 else [(case["url"], status)]
    assert taken == []


def test_no_text_runs_wherever_it_is_shown(sealed_site: World) -> None:
    client, ran, shown = sealed_site.client("viewer"), [], set()
    for route in OF_A_PROJECT:
        pk = sealed_site.hostile.get(route.split("/")[2])
        other = sealed_site.hostile | ({"pk": pk} if pk else {})
        _, content = answer(client, "get", sealed_site.address(route, **other))
        page = content.decode(errors="replace")
        if page.lstrip().startswith("<"):
            ran += [(route, raw) for raw in ("<script>alert", "<b hx-get", "\u202e", "\x07") if raw in page]
            shown |= {route} if HOSTILE_SHOWN in page else set()
    assert ran == []
    of_run = ("", "groups/", "groups/<group_id>/", "problems/", "problems/<key>/")
    of_run += ("evaluations/", "attempts/", "logs/", "config/", "events/")
    others = ("", "alerts/", "alerts/<alert_id>/", "runs/", "datasets/", "datasets/<pk>/", "suites/<pk>/")
    others += ("lab/chat/<chat_id>/", "lab/jobs/<job_id>/", "queues/", "queues/<queue_id>/")
    assert {f"p/<slug>/{route}" for route in (*(f"runs/<run_id>/{tab}" for tab in of_run), *others)} <= shown


def test_nothing_is_reached_through_another_project(sealed_site: World) -> None:
    client, wrong = sealed_site.client("stranger"), []
    for route in OF_A_PROJECT:
        for method in ("get", "post") if route in WITH_IDS else ("get",):
            status, content = answer(client, method, sealed_site.address(route, slug="theirs"))
            reached = route in WITH_IDS and "/nodes/" not in route and status not in (404, 405)
            if reached or any(secret in content for secret in SECRETS):
                wrong.append((method, route, status))
    assert wrong == []


def test_an_id_beyond_any_column_is_404(sealed_site: World) -> None:
    client, wrong = sealed_site.client("admin"), []
    for route in WITH_IDS:
        for changed in sorted(set(PARAMETER.findall(route)) - {"slug", "audience"}):
            address = sealed_site.address(route, **{changed: HUGE})
            codes = {answer(client, method, address)[0] for method in ("get", "post")}
            if not {404} <= codes <= {404, 405}:
                wrong.append((route, changed, codes))
    assert wrong == []


@pytest.mark.parametrize(
    "values", [ODD, *(pytest.param((value,), marks=pytest.mark.slow) for value in ODD)], ids=["in turn", *ODD]
)
def test_no_query_string_is_an_error_of_ours(sealed_site: World, values: tuple[str, ...]) -> None:
    """Each address with each group of parameters and one of the values, the next one each time. /readyz has none, and
    503 is its word for what is down here."""
    client, wrong, turn = sealed_site.client("admin"), [], itertools.cycle(values)
    for route in [route for route in ALL if not route.startswith("api/") and route != "readyz"]:
        for names, value in zip(QUERIES, turn, strict=False):
            query = "&".join(f"{name}={value}" for name in names)
            status, _ = answer(client, "get", f"{sealed_site.address(route)}?{query}")
            if not isinstance(status, int) or status >= 500:
                wrong.append((route, query))
    assert wrong == []
