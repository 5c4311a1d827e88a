"""A run whose reward runs code: refused at its launch where no node could keep the code apart, else given only to a
node that can."""

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from cohort.accounts.models import Project, User
from cohort.catalog.services import verifier_version_create
from cohort.runs.attempts import NotWaiting, attempt_claim
from cohort.runs.models import Node, Run, RunState
from cohort.runs.nodes import node_create, node_present
from cohort.runs.schedule import queue, seats, takeable
from cohort.runs.selectors.queue import waiting_rows
from cohort.runs.services import run_submit
from grpo_core.errors import ConfigError
from tests.factories.runs import Maker
from tests.factories.sandbox_reports import BROKEN, WORKS, node_info
from tests.web.control import fresh

pytestmark = pytest.mark.django_db

PYTHON: dict[str, Any] = {
    "components": [{"name": "own", "kind": "python", "params": {"source": "def verify(sample):\n    return 1.0\n"}}]
}


@pytest.fixture
def coder(maker: Maker, ours: Project, alice: User) -> Maker:
    """Makes runs whose reward is a person's own function."""
    maker.verifier_version = verifier_version_create(project=ours, actor=alice, name="own", spec=PYTHON)
    return maker


def there(name: str, report: dict[str, Any] | None, **more: Any) -> Node:
    node, _ = node_create(name=name)
    node_present(node=node, info=node_info(report, **more))
    node.refresh_from_db()
    return node


def why_refused(run: Run, actor: User) -> str:
    with pytest.raises(ConfigError) as error:
        run_submit(run=run, actor=actor)
    assert fresh(run).state == RunState.DRAFT
    [problem] = error.value.problems
    assert problem.path == "reward"
    return problem.message


def test_refused_with_each_nodes_fix_until_one_works(coder: Maker, alice: User, admin: Client) -> None:
    run = coder.run()
    assert run.needs_sandbox
    assert "no node is registered" in why_refused(run, alice)
    there("old", None)
    broken = there("gpu-1", BROKEN)
    why = why_refused(run, alice)
    assert "old: its worker has not said" in why
    assert f"gpu-1: {BROKEN['fix']}" in why
    page = admin.post(f"/p/ours/runs/{run.pk}/submit/", follow=True).content.decode()
    assert "apparmor_restrict_unprivileged_userns=0" in page
    node_present(node=broken, info=node_info(WORKS))
    run_submit(run=run, actor=alice)
    assert fresh(run).state == RunState.QUEUED


def test_a_revoked_nodes_sandbox_does_not_count_and_a_silent_ones_does(coder: Maker, alice: User) -> None:
    run = coder.run()
    node = there("gpu-1", WORKS)
    Node.objects.filter(pk=node.pk).update(revoked_at=timezone.now())
    assert "no node is registered" in why_refused(run, alice)
    Node.objects.filter(pk=node.pk).update(revoked_at=None, last_seen_at=None)
    run_submit(run=run, actor=alice)


def test_a_reward_of_rules_needs_none(maker: Maker, alice: User) -> None:
    run = maker.run()
    assert not run.needs_sandbox
    run_submit(run=run, actor=alice)


def test_it_goes_only_to_a_node_that_can(coder: Maker, alice: User) -> None:
    good, bad = there("good", WORKS), there("bad", BROKEN)
    run = coder.run()
    run_submit(run=run, actor=alice)
    assert [one.pk for one in takeable(queue(), seats())] == [run.pk]
    with pytest.raises(NotWaiting, match="has a sandbox that works"):
        attempt_claim(run_id=run.pk, node=bad, info=node_info(BROKEN))
    Node.objects.filter(pk=good.pk).update(last_seen_at=None)
    [row] = waiting_rows()
    assert "sandbox" in row.needs
    assert f"bad: {BROKEN['fix']}" in row.why
    assert takeable(queue(), seats()) == []
    assert attempt_claim(run_id=run.pk, node=good, info=node_info(WORKS)).attempt.run_id == run.pk


def test_a_node_whose_sandbox_broke_meanwhile_gets_none(coder: Maker, alice: User) -> None:
    """By what it says with the claim itself, not by what it said before."""
    node = there("gpu-1", WORKS)
    run = coder.run()
    run_submit(run=run, actor=alice)
    with pytest.raises(NotWaiting):
        attempt_claim(run_id=run.pk, node=node, info=node_info(BROKEN))
    assert attempt_claim(run_id=run.pk, node=node, info=node_info(WORKS)).attempt.run_id == run.pk


def test_others_are_not_held_up(coder: Maker, maker: Maker, alice: User, verifier_version: Any) -> None:
    node = there("gpu-1", BROKEN)
    there("far", WORKS)
    first = coder.run("code")
    run_submit(run=first, actor=alice)
    coder.verifier_version = verifier_version
    second = coder.run("rules")
    run_submit(run=second, actor=alice)
    assert attempt_claim(run_id=first.pk, node=node, info=node_info(BROKEN)).attempt.run_id == second.pk
