"""Every service function of people, projects, catalog, nodes, limits and runs leaves an entry, by calling it;
test_audit_source.py reads the source of all others too."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.test import Client

from cohort.accounts import services as accounts
from cohort.accounts.models import Project, Role, User
from cohort.audit.models import AuditEntry
from cohort.catalog import services as catalog
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.evidence.canonical import parse
from cohort.runs import attempts, limits, nodes, reconcile, revoke, services, transitions
from cohort.runs.models import Attempt, Checkpoint, Draining, Priority, Run, RunState
from grpo_core import records
from grpo_core.wire import LostAttempt, LostAttempts
from tests.sealed_run import ingest
from tests.web.conftest import PASSWORD, PROBLEMS, R1_EXACT
from tests.web.control import beat, claim, finish, node
from tests.web.governance.call_graph import EXEMPT, FOUND, writing
from tests.web.run_rows import Maker, add_checkpoint

OWN = ("cohort.accounts.services.", "cohort.catalog.services.", "cohort.runs.")
ELSEWHERE = {
    "cohort.runs.rows.store": "test_a_phase_that_the_trainer_tells_is_a_move",
    "cohort.runs.attempts.attempt_over": "by whatever ends an attempt, below",
    "cohort.runs.services.imports.results_import": "tests/web/test_run_evaluations*.py",
}


@dataclass
class Scene:
    ours: Project
    alice: User
    bob: User
    maker: Maker
    base_model: BaseModel
    dataset: PromptDataset
    verifier_version: VerifierVersion
    tiny: str
    given: Any = None
    """What `before` made."""

    def waiting(self) -> Run:
        return self.maker.launched("waits", eval={"holdout": 4})

    def live(self) -> Attempt:
        self.waiting()
        return claim(node("gpu-1"))

    def failed(self) -> Run:
        return finish(self.live(), "failed", "config_error")

    def paused(self) -> Run:
        run = self.waiting()
        services.run_pause(run=run, actor=self.alice)
        return run

    def checkpoint(self) -> Checkpoint:
        return add_checkpoint(self.live(), 2)

    def revoked(self) -> Any:
        made = node("gpu-1")
        revoke.node_revoke(node=made, actor=self.alice)
        return made

    def rotated(self) -> str:
        return nodes.node_rotate(node=node("gpu-1"), actor=None)


@pytest.fixture
def scene(
    ours: Project,
    alice: User,
    bob: User,
    maker: Maker,
    base_model: BaseModel,
    dataset: PromptDataset,
    verifier_version: VerifierVersion,
    tiny_model_folder: str,
) -> Scene:
    return Scene(ours, alice, bob, maker, base_model, dataset, verifier_version, tiny_model_folder)


@dataclass(frozen=True)
class Case:
    function: str
    act: Callable[[Scene], Any]
    kinds: list[str]
    """Of the entries that it leaves, in order."""
    actor: str = "user:alice"
    before: Callable[[Scene], Any] = lambda scene: None
    """What must be there first; its entries do not count."""


def _ended(run: Run) -> Run:
    Run.objects.filter(pk=run.pk).update(ended_at=None)
    return run


def _sealing(scene: Scene) -> Run:
    attempt = scene.live()
    Attempt.objects.filter(pk=attempt.pk).update(outcome={"status": "finished"})
    attempt.refresh_from_db()
    return finish(attempt, "finished", "ok")


# fmt: off
CASES = [
    Case("cohort.accounts.services.user_create", lambda s: accounts.user_create(username="zoe"), ["user_created"],
         actor="platform"),
    Case("cohort.accounts.services.password_hand_out", lambda s: accounts.password_hand_out(user=s.bob),
         ["password_handed_out"], actor="platform"),
    Case("cohort.accounts.services.password_change",
         lambda s: accounts.password_change(user=s.alice, password="another battery"), ["password_changed"]),
    Case("cohort.accounts.services.staff_make", lambda s: accounts.staff_make(user=s.bob), ["staff_made"],
         actor="platform"),
    Case("cohort.accounts.services.project_create",
         lambda s: accounts.project_create(slug="new", name="New", owner=s.alice), ["project_created"]),
    Case("cohort.accounts.services.membership_set",
         lambda s: accounts.membership_set(project=s.ours, actor=s.alice, user=s.bob, role=Role.ADMIN),
         ["member_role_changed"]),
    Case("cohort.accounts.services.membership_set",
         lambda s: accounts.membership_add(project=s.ours, actor=s.alice, user=s.given, role=Role.VIEWER),
         ["member_added"], before=lambda s: accounts.user_create(username="zoe")[0]),
    Case("cohort.accounts.services.membership_set",
         lambda s: accounts.membership_set(project=s.ours, actor=s.alice, user=s.bob, role=Role.VIEWER), []),
    Case("cohort.accounts.services.membership_remove",
         lambda s: accounts.membership_remove(project=s.ours, actor=None, user=s.bob), ["member_removed"],
         actor="platform"),
    Case("cohort.catalog.services.base_model_register",
         lambda s: catalog.base_model_register(project=s.ours, actor=s.alice, name="again", path=s.tiny),
         ["base_model_registered"]),
    Case("cohort.catalog.services.dataset_create",
         lambda s: catalog.dataset_create(project=s.ours, actor=s.alice, name="d", format="jsonl", chunks=[PROBLEMS]),
         ["dataset_created"]),
    Case("cohort.catalog.services.verifier_version_create",
         lambda s: catalog.verifier_version_create(project=s.ours, actor=s.alice, name="v", spec=R1_EXACT),
         ["verifier_version_created"]),
    Case("cohort.catalog.services.verifier_version_create",
         lambda s: catalog.verifier_version_create(project=s.ours, actor=s.alice, name="r1 + exact", spec=R1_EXACT),
         []),
    Case("cohort.runs.limits.project_limits_set",
         lambda s: limits.project_limits_set(project=s.ours, actor=s.alice, max_running=2, gpu_hours=None),
         ["project_limits_changed"]),
    Case("cohort.runs.limits.project_limits_set",
         lambda s: limits.project_limits_set(project=s.ours, actor=s.alice, max_running=None, gpu_hours=None), []),
    Case("cohort.runs.nodes.node_create", lambda s: nodes.node_create(name="gpu-1", actor=s.alice), ["node_created"]),
    Case("cohort.runs.nodes.node_rotate", lambda s: nodes.node_rotate(node=s.given, actor=s.alice),
         ["node_token_rotated"], before=lambda s: node("gpu-1")),
    Case("cohort.runs.nodes.node_rotate", lambda s: nodes.node_rotate(node=s.given, actor=s.alice),
         ["node_let_in_again"], before=Scene.revoked),
    Case("cohort.runs.nodes.node_by_token", lambda s: [nodes.node_by_token(s.given) for _ in range(2)],
         ["node_token_replaced"], actor="node:gpu-1", before=Scene.rotated),
    Case("cohort.runs.nodes.node_drain",
         lambda s: nodes.node_drain(node=s.given, actor=s.alice, how=Draining.MOVE), ["node_drained"],
         before=lambda s: node("gpu-1")),
    Case("cohort.runs.nodes.node_undrain", lambda s: nodes.node_undrain(node=s.given.node, actor=s.alice),
         ["node_undrained"],
         before=lambda s: (one := s.live(), nodes.node_drain(node=one.node, actor=None, how=Draining.FINISH))[0]),
    Case("cohort.runs.revoke.node_revoke", lambda s: revoke.node_revoke(node=s.given.node, actor=s.alice),
         ["node_revoked", "run_moved"], before=Scene.live),
    Case("cohort.runs.services.creation.run_create", lambda s: s.maker.run("r"), ["run_created"]),
    Case("cohort.runs.services.creation.run_submit", lambda s: services.run_submit(run=s.given, actor=s.alice),
         ["run_moved", "run_submitted"], before=lambda s: s.maker.run("r")),
    Case("cohort.runs.services.creation.run_launch", Scene.waiting, ["run_created", "run_moved", "run_submitted"]),
    Case("cohort.runs.services.steering.run_cancel",
         lambda s: services.run_cancel(run=s.given, actor=s.alice, reason="wrong"), ["run_moved"],
         before=Scene.waiting),
    Case("cohort.runs.services.steering.run_cancel",
         lambda s: services.run_cancel(run=s.given.run, actor=s.alice, reason="wrong"), ["run_cancel_asked"],
         before=Scene.live),
    Case("cohort.runs.services.steering.run_pause",
         lambda s: services.run_pause(run=s.given.run, actor=s.alice, reason="lunch"), ["run_pause_asked"],
         before=Scene.live),
    Case("cohort.runs.services.steering.run_pause", lambda s: services.run_pause(run=s.given, actor=s.alice),
         ["run_moved"], before=Scene.waiting),
    Case("cohort.runs.services.steering.run_resume", lambda s: services.run_resume(run=s.given, actor=s.alice),
         ["run_moved"], before=Scene.paused),
    Case("cohort.runs.services.steering.run_resume", lambda s: services.run_resume(run=s.given.run, actor=s.alice),
         ["run_pause_withdrawn"],
         before=lambda s: (one := s.live(), services.run_pause(run=one.run, actor=s.alice))[0]),
    Case("cohort.runs.services.steering.run_retry",
         lambda s: services.run_retry(run=s.given, actor=s.alice, reason="mended"), ["run_retried", "run_moved"],
         before=lambda s: _ended(s.failed())),
    Case("cohort.runs.services.steering.run_extend",
         lambda s: services.run_extend(run=s.given, actor=s.alice, steps=3), ["run_extended", "run_moved"],
         before=lambda s: _ended((one := s.checkpoint(), finish(one.attempt, "failed", "config_error"))[1])),
    Case("cohort.runs.services.steering.run_prioritise",
         lambda s: services.run_prioritise(run=s.given, actor=s.alice, priority=Priority.HIGH), ["run_prioritised"],
         before=Scene.waiting),
    Case("cohort.runs.services.steering.checkpoint_pin",
         lambda s: services.checkpoint_pin(checkpoint=s.given, actor=s.alice, pinned=True), ["checkpoint_pinned"],
         before=Scene.checkpoint),
    Case("cohort.runs.services.steering.run_sealed", lambda s: services.run_sealed(run=s.given), ["run_moved"],
         actor="platform", before=_sealing),
    Case("cohort.runs.transitions.run_move",
         lambda s: transitions.run_move(run=s.given, to=RunState.PAUSED, actor="platform", reason="why"),
         ["run_moved"], actor="platform", before=Scene.waiting),
    Case("cohort.runs.attempts.attempt_claim", lambda s: claim(s.given), ["run_moved"], actor="node:gpu-1",
         before=lambda s: (s.waiting(), node("gpu-1"))[1]),
    Case("cohort.runs.attempts.attempt_finish", lambda s: finish(s.given, "failed", "config_error"), ["run_moved"],
         actor="node:gpu-1", before=Scene.live),
    Case("cohort.runs.attempts.attempts_released", lambda s: attempts.attempts_released(
         node=s.given.node, lost=LostAttempts(attempts=[LostAttempt(attempt_id=s.given.pk, fence=s.given.fence)])),
         ["run_moved"], actor="node:gpu-1", before=Scene.live),
    Case("cohort.runs.reconcile.attempts_lost", lambda s: reconcile.attempts_lost(), ["run_moved"], actor="platform",
         before=lambda s: Attempt.objects.filter(pk=s.live().pk).update(lease_until="2020-01-01T00:00:00Z")),
    Case("a beat", lambda s: beat(s.given, 3), [], before=Scene.live),
]
# fmt: on


@pytest.mark.parametrize("case", CASES, ids=[f"{case.function.rpartition('.')[2]}: {case.kinds}" for case in CASES])
def test_it_leaves_its_entries(scene: Scene, case: Case) -> None:
    scene.given = case.before(scene)
    newest = AuditEntry.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    case.act(scene)
    entries = AuditEntry.objects.filter(pk__gt=newest).order_by("pk")
    assert [entry.kind for entry in entries] == case.kinds
    assert {entry.actor for entry in entries} <= {case.actor}


def test_the_cases_call_every_function_that_writes() -> None:
    wanted = {name for name in writing(FOUND) if name.startswith(OWN) and name not in EXEMPT.keys() | ELSEWHERE.keys()}
    assert sorted(wanted - {case.function for case in CASES}) == []


# ---------------------------------------------------------------------- what entries say


def said(kind: str) -> Any:
    return parse(bytes(AuditEntry.objects.filter(kind=kind).order_by("-pk")[0].body))


def test_the_margins_are_in_the_log_before_the_run_is_claimed(scene: Scene) -> None:
    run = scene.maker.launched("margins", eval={"holdout": 4, "margin": 0.02})
    entry = said("run_submitted")
    unprobed = {"state": "unprobed", "pays_wrong": [], "probe": None}
    assert entry["data"] == {
        "config_digest": run.config_digest,
        "margins": {"heldout": 0.02},
        "reward_probe": unprobed,
    }
    assert (entry["subject"], entry["project"]) == (f"run:{run.pk}", "ours")
    assert run.state == RunState.QUEUED


def test_margins_of_suites_are_their_own_or_the_general_one() -> None:
    config = {
        "eval": {"margin": 0.05, "suites": [{"name": "mgsm", "margin": None}, {"name": "xstest", "margin": 0.01}]}
    }
    assert services.creation.margins(config) == {"heldout": 0.05, "mgsm": 0.05, "xstest": 0.01}


def test_what_was_changed_is_told_before_and_after(scene: Scene) -> None:
    run = scene.waiting()
    services.run_prioritise(run=run, actor=scene.alice, priority=Priority.HIGH)
    limits.project_limits_set(project=scene.ours, actor=scene.alice, max_running=2, gpu_hours=10)
    limits.project_limits_set(project=scene.ours, actor=scene.alice, max_running=3, gpu_hours=10)
    services.run_pause(run=run, actor=scene.alice, reason="lunch")
    assert (said("run_prioritised")["before"], said("run_prioritised")["after"]) == ({"priority": 0}, {"priority": 10})
    assert said("project_limits_changed")["before"] == {"max_running": 2, "gpu_hours_limit": 10}
    assert said("project_limits_changed")["after"] == {"max_running": 3, "gpu_hours_limit": 10}
    assert said("run_moved")["before"] == {"state": "queued"}
    assert said("run_moved")["after"] == {"state": "paused"}
    assert said("run_moved")["reason"] == "Paused by alice before it started: lunch"


def test_no_secret_is_in_the_log(scene: Scene) -> None:
    _, password = accounts.user_create(username="zoe")
    handed = accounts.password_hand_out(user=scene.bob)
    accounts.password_change(user=scene.bob, password="a third battery")
    made, token = nodes.node_create(name="gpu-9")
    other = nodes.node_rotate(node=made, actor=None)
    log = b"".join(bytes(body) for body in AuditEntry.objects.values_list("body", flat=True))
    for secret in (password, handed, "a third battery", token, other, nodes.token_digest(token), scene.bob.password):
        assert secret.encode() not in log


def test_a_reason_of_10_mb_is_refused_and_nothing_is_done(scene: Scene) -> None:
    run = scene.waiting()
    before = AuditEntry.objects.count()
    for act in (services.run_cancel, services.run_pause):
        with pytest.raises(services.NotPossible, match="10,485,760 characters long; 10,000 at most are taken"):
            act(run=run, actor=scene.alice, reason="x" * (10 * 1024 * 1024))
    run.refresh_from_db()
    assert run.state == RunState.QUEUED
    assert AuditEntry.objects.count() == before


def test_a_reason_that_is_too_long_is_refused_by_the_page_in_words(
    scene: Scene, client_for: Callable[[User], Client]
) -> None:
    run = scene.waiting()
    address = f"/p/ours/runs/{run.pk}/cancel/"
    page = client_for(scene.alice).post(address, {"reason": "x" * 20_000}, follow=True).content.decode()
    assert "Nothing was done: The reason is 20,000 characters long; 10,000 at most are taken. Shorten it." in page
    run.refresh_from_db()
    assert run.state == RunState.QUEUED


def test_a_machines_long_words_end_a_run_all_the_same(scene: Scene) -> None:
    attempt = scene.live()
    run = finish(attempt, "failed", "config_error", message="y" * 50_000)
    assert run.state == RunState.FAILED
    assert len(run.reason) >= 50_000, "whole on the run"
    assert said("run_moved")["reason"].endswith("characters; the rest stands in the run's events)")
    assert len(said("run_moved")["reason"]) == 10_000


# ---------------------------------------------------------------------- signing in and out, taking away


def test_sign_ins_outs_and_failures(alice: User) -> None:
    client = Client()
    before = AuditEntry.objects.count()
    client.post("/login/", {"username": "alice", "password": "wrong"})
    client.post("/login/", {"username": "hunter2 typed here", "password": "wrong"})
    client.post("/login/", {"username": "alice", "password": PASSWORD})
    client.post("/logout/")
    client.post("/logout/")
    entries = AuditEntry.objects.order_by("pk")[before:]
    assert [(one.actor, one.kind, one.subject, one.project) for one in entries] == [
        ("anonymous", "sign_in_failed", "user:alice", ""),
        ("anonymous", "sign_in_failed", "server:sign-in", ""),
        ("user:alice", "signed_in", "user:alice", ""),
        ("user:alice", "signed_out", "user:alice", ""),
    ]
    assert b"hunter2" not in b"".join(bytes(one.body) for one in entries)


def test_a_lock_is_told_once(alice: User) -> None:
    client = Client()
    for _ in range(8):
        client.post("/login/", {"username": "alice", "password": "wrong"})
    assert AuditEntry.objects.filter(kind="sign_in_locked", subject="user:alice").count() == 1
    assert AuditEntry.objects.filter(kind="sign_in_failed").count() == 8


def test_a_flood_of_failures_does_not_flood_the_log(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cohort.audit.sign_ins.MOST", 10)
    for number in range(15):
        Client().post("/login/", {"username": f"nobody-{number}", "password": "wrong"})
    kinds = list(AuditEntry.objects.order_by("pk").values_list("kind", flat=True))
    assert kinds == ["sign_in_failed"] * 10 + ["sign_ins_flooded"]
    assert "More than 10 sign-ins failed within 10 minutes" in said("sign_ins_flooded")["reason"]


def test_a_password_changed_on_its_page_is_told(client_for: Callable[[User], Client], alice: User) -> None:
    client = client_for(alice)
    new = {"old_password": PASSWORD, "new_password1": "staple staple staple", "new_password2": "staple staple staple"}
    assert client.post("/password/", new).status_code == 302
    assert AuditEntry.objects.filter(kind="password_changed", actor="user:alice").count() == 1
    assert client.get("/projects/").status_code == 200, "this browser stays signed in"
    alice.refresh_from_db()
    assert alice.check_password("staple staple staple")


def test_files_of_a_run_that_are_taken_away_are_told(client_for: Callable[[User], Client], scene: Scene) -> None:
    run = scene.waiting()
    client = client_for(scene.bob)
    for file, kind in (("config.yaml", "run_config_downloaded"), ("metrics.csv", "run_metrics_downloaded")):
        assert client.head(f"/p/ours/runs/{run.pk}/{file}").status_code == 200
        assert not AuditEntry.objects.filter(kind=kind).exists()
        assert client.get(f"/p/ours/runs/{run.pk}/{file}").status_code == 200
        entry = AuditEntry.objects.get(kind=kind)
        assert (entry.actor, entry.subject, entry.project) == ("user:bob", f"run:{run.pk}", "ours")


def test_a_phase_that_the_trainer_tells_is_a_move_and_a_batch_is_not(scene: Scene) -> None:
    attempt = scene.live()
    before = AuditEntry.objects.count()
    ingest(attempt, [records.Event(type="note", message="m") for _ in range(5)])
    assert AuditEntry.objects.count() == before, "nothing for a batch"
    ingest(attempt, [records.PhaseStarted(phase="training", total=3)])
    assert said("run_moved")["after"] == {"state": "training"}
    assert AuditEntry.objects.count() == before + 1
