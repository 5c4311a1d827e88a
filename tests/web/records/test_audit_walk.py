"""Every service function of people, projects, catalog, nodes, limits and runs leaves its entries, in one story that
calls them all; test_audit_source.py reads the source of all others too. And signing in, and taking away."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client

from cohort.accounts import api_tokens, invitations, people
from cohort.accounts import services as accounts
from cohort.accounts.models import Membership, Role, User
from cohort.audit.models import AuditEntry
from cohort.background import reconcile, revoke
from cohort.catalog import services as catalog
from cohort.evidence.canonical import parse
from cohort.launch import creation
from cohort.nodes import services as nodes
from cohort.nodes.models import Draining
from cohort.runs import attempts, base_models, limits, marks, transitions
from cohort.runs import services as steering
from cohort.runs.models import Attempt, Priority, Run, RunState
from cohort.runs.services import NotPossible
from grpo_core.protocol.messages import Finish, LostAttempt, LostAttempts, NodeInfo
from grpo_core.records import types as records
from tests.factories.runs import UNPROBED, Maker, add_checkpoint
from tests.factories.sealed_run import ingest
from tests.web.conftest import PASSWORD, PROBLEMS, R1_EXACT
from tests.web.control import beat, claim, finish, node
from tests.web.records.records import logged
from tests.web.records.test_audit_source import EXEMPT, FUNCTIONS

OWN = tuple(
    f"cohort.{name}" for name in ("accounts.", "catalog.services.", "nodes.", "runs.", "launch.", "background.")
)
ELSEWHERE = {
    "cohort.ingest.rows.store": "test_a_phase_that_the_trainer_tells_is_a_move_and_a_batch_is_not",
    "cohort.runs.attempts.attempt_over": "by whatever ends an attempt",
    "cohort.catalog.services.base_model_store": "by what registers a base model",
    "cohort.launch.sweeps.sweep_launch": "tests/web/test_sweeps.py",
    **{f"cohort.runs.charts.chart_{done}": "tests/web/test_own_charts.py" for done in ("create", "change", "remove")},
    "cohort.evaluations.services.results_import": "tests/web/test_run_evaluations*.py",
}
VARIES = re.compile(
    r'\b[0-9a-f]{64}\b|(?<="subject": "run:)\d+|(?<=model:)\d+|(?<=dataset:)\d+|(?<=verifier:)\d+'
    r'|(?<=cohort_pat_)[0-9a-f]{12}|(?<="expires": ")[^"]+'
    r'|(?<="checkpoint": )\d+|(?<=inputs/checkpoint-)\d+|(?<=sent its last heartbeat ).+?(?= ago)'
)


def bodies(after: int) -> list[dict[str, Any]]:
    """What the entries since this one say, without moments and nonces, ids of runs and digests."""
    found = [parse(bytes(entry.body)) for entry in AuditEntry.objects.filter(pk__gt=after).order_by("pk")]
    kept = [{name: value for name, value in one.items() if name not in ("at", "nonce") and value} for one in found]
    return json.loads(VARIES.sub("…", json.dumps(kept)).replace(": …", ": 0"))


def newest() -> int:
    return AuditEntry.objects.order_by("-pk").values_list("pk", flat=True).first() or 0


class Story:
    """Calls, each with the entries that it left."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def __call__(self, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        before = newest()
        result = function(*given, **named)
        self.calls.append({"call": f"{function.__module__}.{function.__name__}", "entries": bodies(before)})
        return result


def again(run: Run) -> Run:
    """Ended so long ago that a person may have it continue."""
    Run.objects.filter(pk=run.pk).update(ended_at=None)
    run.refresh_from_db()
    return run


def end(attempt: Attempt, how: str) -> Finish:
    told = {"fence": attempt.fence, "end": how, "code": "config_error", "message": "why", "last_seq": attempt.acked_seq}
    return Finish.model_validate(told)


def people_and_catalog(did: Story, maker: Maker, bob: User, tiny: str) -> None:
    ours, by = maker.project, {"project": maker.project, "actor": maker.actor}
    zoe, _ = did(accounts.user_create, username="zoe")
    did(accounts.password_hand_out, user=bob)
    did(accounts.password_change, user=maker.actor, password="another battery")
    did(accounts.staff_make, user=bob)
    token, _ = did(api_tokens.api_token_create, user=maker.actor, name="ci", scope="launch")
    for _ in range(2):
        did(api_tokens.api_token_revoke, token=token, actor=maker.actor)
    did(accounts.project_create, slug="second", name="Second", owner=maker.actor)
    did(accounts.membership_set, **by, user=bob, role=Role.ADMIN)
    did(accounts.membership_set, **by, user=bob, role=Role.ADMIN)
    for answer in (invitations.invitation_accept, invitations.invitation_decline):
        invited = did(invitations.invitation_make, **by, username="zoe", role=Role.VIEWER)
        did(answer, invitation=invited, actor=zoe)
        Membership.objects.filter(user=zoe).delete()
    invited = did(invitations.invitation_make, **by, username="zoe", role=Role.VIEWER)
    did(invitations.invitation_withdraw, invitation=invited, actor=maker.actor)
    for change in (people.user_disable, people.user_disable, people.user_enable, people.sessions_end):
        did(change, user=zoe, actor=maker.actor)
    did(accounts.membership_remove, project=ours, actor=None, user=bob)
    model = did(catalog.base_model_register, **by, name="again", path=tiny)
    for archived in (True, True, False):
        did(catalog.base_model_archive, model=model, actor=maker.actor, archived=archived)
    did(catalog.dataset_create, **by, name="d", format="plain", chunks=[PROBLEMS])
    did(catalog.verifier_version_create, **by, name="v", spec=R1_EXACT)
    did(catalog.verifier_version_create, **by, name="r1 + exact", spec=R1_EXACT)
    did(limits.project_limits_set, **by, max_running=2, gpu_hours=None)
    did(limits.project_limits_set, **by, max_running=2, gpu_hours=None)
    did(limits.project_limits_set, **by, max_running=3, gpu_hours=10)
    did(limits.project_quotas_set, **by, quotas={"max_members": 7, "max_open_jobs": None})


def nodes_and_attempts(did: Story, maker: Maker, actor: User) -> None:
    made, _ = did(nodes.node_create, name="gpu-0", actor=actor)
    token = did(nodes.node_rotate, node=made, actor=actor)
    for _ in range(2):
        did(nodes.node_by_token, token)
    did(nodes.node_drain, node=made, actor=actor, how=Draining.MOVE)
    did(nodes.node_undrain, node=made, actor=actor)
    on = node("gpu-1")
    run = did(creation.run_launch, **maker._named("first"), settings={"eval": {"holdout": 4}}, probe_override=UNPROBED)
    taken, _ = did(attempts.attempt_claim, run_id=run.pk, node=on, info=NodeInfo.model_validate(on.info))
    did(beat, taken, 3)
    did(revoke.node_revoke, node=on, actor=actor)
    did(nodes.node_rotate, node=on, actor=actor)
    Run.objects.update(not_before=None)
    taken = claim(on)
    lost = LostAttempts(attempts=[LostAttempt(attempt_id=taken.pk, fence=taken.fence)])
    did(attempts.attempts_released, node=on, lost=lost)
    Run.objects.update(not_before=None)
    Attempt.objects.filter(pk=claim(on).pk).update(lease_until="2020-01-01T00:00:00Z")
    did(reconcile.attempts_lost)


def runs(did: Story, maker: Maker, actor: User) -> None:
    on, why = node("gpu-2"), {"actor": actor, "reason": "lunch"}
    run = did(creation.run_create, **maker._named("second"), settings={"eval": {"holdout": 4, "margin": 0.02}})
    did(creation.run_submit, run=run, actor=actor, probe_override=UNPROBED)
    did(steering.run_prioritise, run=run, actor=actor, priority=Priority.HIGH)
    did(steering.run_pause, run=run, **why)
    did(steering.run_resume, run=run, actor=actor)
    taken = claim(on, run.pk)
    did(steering.run_pause, run=taken.run, **why)
    did(steering.run_resume, run=taken.run, actor=actor)
    did(steering.run_cancel, run=taken.run, **why)
    finish(taken, "cancelled")
    waits = maker.launched("third", eval={"holdout": 4})
    did(transitions.run_move, run=waits, to=RunState.PAUSED, actor="platform", reason="why")
    did(steering.run_cancel, run=waits, **why)
    taken = claim(on, maker.launched("fourth", eval={"holdout": 4}).pk)
    did(attempts.attempt_finish, attempt=taken, finish=end(taken, "failed"))
    did(steering.run_retry, run=again(taken.run), **why)
    taken = claim(on, taken.run_id)
    did(steering.checkpoint_pin, checkpoint=add_checkpoint(taken, 2), actor=actor, pinned=True)
    wanted = add_checkpoint(taken, 3)
    did(base_models.checkpoint_request, checkpoint=wanted, actor=actor)
    did(base_models.checkpoint_register, checkpoint=wanted, actor=actor, name="first at 3")
    finish(taken, "failed", "config_error")
    did(steering.run_extend, run=again(taken.run), actor=actor, steps=3)
    taken = claim(on, taken.run_id)
    Attempt.objects.filter(pk=taken.pk).update(outcome={"status": "finished"})
    taken.refresh_from_db()
    did(steering.run_sealed, run=finish(taken, "finished", "ok"))
    did(marks.run_tags_change, run=waits, actor=actor, add=["hack"])
    did(marks.run_note_set, run=waits, actor=actor, note="looked at")
    did(marks.run_archive, run=waits, actor=actor, archived=True)
    did(marks.run_archive, run=waits, actor=actor, archived=False)


def test_every_function_that_writes_leaves_its_entries(
    maker: Maker, bob: User, tiny_model_folder: str, golden: Callable[[str, Any], None]
) -> None:
    did = Story()
    people_and_catalog(did, maker, bob, tiny_model_folder)
    limits.project_limits_set(project=maker.project, actor=maker.actor, max_running=None, gpu_hours=None)
    nodes_and_attempts(did, maker, maker.actor)
    runs(did, maker, maker.actor)
    golden("audit/entries.json", did.calls)
    wanted = {name for name in FUNCTIONS.writing if name.startswith(OWN)} - EXEMPT.keys() - ELSEWHERE.keys()
    assert sorted(wanted - {call["call"] for call in did.calls}) == []


def test_margins_of_suites_are_their_own_or_the_general_one() -> None:
    suites = [{"name": "mgsm", "margin": None}, {"name": "xstest", "margin": 0.01}]
    margins = creation.margins({"eval": {"margin": 0.05, "suites": suites}})
    assert margins == {"heldout": 0.05, "mgsm": 0.05, "xstest": 0.01}


def test_no_secret_is_in_the_log(bob: User) -> None:
    _, password = accounts.user_create(username="zoe")
    handed = accounts.password_hand_out(user=bob)
    accounts.password_change(user=bob, password="a third battery")
    made, token = nodes.node_create(name="gpu-9")
    other = nodes.node_rotate(node=made, actor=None)
    _, api_token = api_tokens.api_token_create(user=bob, name="ci", scope="read")
    log = b"".join(bytes(body) for body in AuditEntry.objects.values_list("body", flat=True))
    for secret in (
        password,
        handed,
        "a third battery",
        token,
        other,
        api_token[-64:],
        nodes.token_digest(token),
        bob.password,
    ):
        assert secret.encode() not in log


def test_a_reason_that_is_too_long_is_refused_and_nothing_is_done(
    maker: Maker, client_for: Callable[[User], Client]
) -> None:
    run = maker.launched("waits", eval={"holdout": 4})
    before = AuditEntry.objects.count()
    for act in (steering.run_cancel, steering.run_pause):
        with pytest.raises(NotPossible, match="10,485,760 characters"):
            act(run=run, actor=maker.actor, reason="x" * (10 * 1024 * 1024))
    sent = {"reason": "x" * 20_000}
    page = client_for(maker.actor).post(f"/p/ours/runs/{run.pk}/cancel/", sent, follow=True).content.decode()
    assert "Nothing was done: The reason is 20,000 characters long" in page
    run.refresh_from_db()
    assert run.state == RunState.QUEUED
    assert AuditEntry.objects.exclude(kind="signed_in").count() == before


def test_a_machines_long_words_end_a_run_all_the_same(maker: Maker) -> None:
    maker.launched("waits", eval={"holdout": 4})
    run = finish(claim(node("gpu-1")), "failed", "config_error", message="y" * 50_000)
    assert run.state == RunState.FAILED
    assert len(run.reason) >= 50_000, "whole on the run"
    assert len(logged("run_moved")[-1]["reason"]) == 10_000


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


def kinds() -> list[str]:
    return list(AuditEntry.objects.order_by("pk").values_list("kind", flat=True))


def test_failures_without_end_are_told_once(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.now(UTC)
    monkeypatch.setattr("cohort.accounts.sign_in_delays.clock", lambda: now)
    for _ in range(8):
        Client().post("/login/", {"username": "alice", "password": "wrong"})
    assert (kinds().count("sign_in_delayed"), kinds().count("sign_in_failed")) == (1, 5)
    monkeypatch.setattr("cohort.accounts.sign_ins.MOST", 10)
    for number in range(14):
        Client().post("/login/", {"username": f"nobody-{number}", "password": "wrong"})
    assert (kinds().count("sign_in_failed"), kinds()[-1]) == (10, "sign_ins_flooded")
    assert "More than 10 sign-ins" in logged("sign_ins_flooded")[-1]["reason"]


def test_a_password_changed_on_its_page_is_told(client_for: Callable[[User], Client], alice: User) -> None:
    client = client_for(alice)
    new = {"old_password": PASSWORD, "new_password1": "staple staple staple", "new_password2": "staple staple staple"}
    assert client.post("/password/", new).status_code == 302
    assert AuditEntry.objects.filter(kind="password_changed", actor="user:alice").count() == 1
    assert client.get("/projects/").status_code == 200, "this browser stays signed in"
    alice.refresh_from_db()
    assert alice.check_password("staple staple staple")


def test_files_of_a_run_that_are_taken_away_are_told(
    client_for: Callable[[User], Client], maker: Maker, bob: User
) -> None:
    run = maker.run()
    maker.attempt(run)
    client = client_for(bob)
    for file, kind in (
        ("config.yaml", "run_config_downloaded"),
        ("metrics.csv", "run_metrics_downloaded"),
        ("log.txt", "run_log_downloaded"),
    ):
        assert client.head(f"/p/ours/runs/{run.pk}/{file}").status_code == 200
        assert not AuditEntry.objects.filter(kind=kind).exists()
        assert client.get(f"/p/ours/runs/{run.pk}/{file}").status_code == 200
        entry = AuditEntry.objects.get(kind=kind)
        assert (entry.actor, entry.subject, entry.project) == ("user:bob", f"run:{run.pk}", "ours")


def test_a_phase_that_the_trainer_tells_is_a_move_and_a_batch_is_not(maker: Maker) -> None:
    maker.launched("waits", eval={"holdout": 4})
    attempt = claim(node("gpu-1"))
    before = AuditEntry.objects.count()
    ingest(attempt, [records.Event(type="note", message="m") for _ in range(5)])
    assert AuditEntry.objects.count() == before, "nothing for a batch"
    ingest(attempt, [records.PhaseStarted(phase="training", total=3)])
    assert logged("run_moved")[-1]["after"] == {"state": "training"}
    assert AuditEntry.objects.count() == before + 1
