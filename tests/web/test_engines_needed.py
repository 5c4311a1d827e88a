"""GPUs, packages and a sandbox that a run needs of its node: refused at its launch where no node has them, else given
only to a node that does; and runs of before a run knew how many GPUs it needs.
"""

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from cohort.accounts.models import User
from cohort.catalog.services import verifier_version_create
from cohort.launch.creation import run_submit
from cohort.nodes.engines import gpus_needed
from cohort.nodes.leases import NotWaiting
from cohort.nodes.models import Node
from cohort.nodes.services import node_create, node_present
from cohort.runs.attempts import attempt_claim
from cohort.runs.models import Run, RunState
from cohort.runs.schedule import node_capacities, queue, takeable
from cohort.runs.waiting import waiting_rows
from grpo_core.config.run import RunConfig
from grpo_core.errors import ConfigError
from grpo_core.protocol.messages import NodeInfo
from tests.factories.runs import UNPROBED, Maker
from tests.factories.sandbox_reports import BROKEN, WORKS, node_info
from tests.factories.worker import NODE
from tests.tables import cases
from tests.web.control import fresh
from tests.web.form_page import error

GPU = {"kind": "cuda", "name": "NVIDIA H200", "memory_bytes": 141 * 10**9}
SERVER = {"rollout": "vllm", "device": "cpu", "vllm": {"place": "server"}}
COLOCATED = {"rollout": "vllm"}
PYTHON: dict[str, Any] = {
    "components": [{"name": "own", "kind": "python", "params": {"source": "def verify(sample):\n    return 1.0\n"}}]
}


@pytest.fixture
def coder(maker: Maker) -> Maker:
    """Makes runs whose reward is a person's own function."""
    version = verifier_version_create(project=maker.project, actor=maker.actor, name="own", spec=PYTHON)
    return Maker(maker.project, maker.actor, maker.base_model, maker.dataset, version)


def info_of(gpus: int = 0, **versions: str) -> NodeInfo:
    named = {name.replace("_", "-"): version for name, version in versions.items()}
    return NODE.model_copy(update={"versions": {**NODE.versions, **named}, "devices": [*NODE.devices, *[GPU] * gpus]})


def there(name: str, info: NodeInfo) -> Node:
    node, _ = node_create(name=name)
    node_present(node=node, info=info)
    return fresh(node)


def refusal(run: Run, actor: User, path: str = "engine.rollout") -> str:
    """Why the launch is refused, at this field."""
    with pytest.raises(ConfigError) as caught:
        run_submit(run=run, actor=actor, probe_override=UNPROBED)
    assert fresh(run).state == RunState.DRAFT
    [problem] = caught.value.problems
    assert problem.path == path
    return problem.message


@pytest.mark.parametrize(("engine", "gpus"), cases("runs/gpus", "engine", "gpus"))
def test_gpus_of_the_trainer_and_of_its_server(maker: Maker, engine: dict[str, Any], gpus: int) -> None:
    run = maker.run(engine=engine)
    assert gpus_needed(RunConfig.from_whole(run.config)) == run.gpus == gpus


def test_what_a_run_holds_counts_the_server_once(maker: Maker, alice: User) -> None:
    run = maker.run(engine={"rollout": "vllm", "vllm": {"place": "server"}, "devices": 2, "nodes": 2})
    info = info_of(3, vllm_server="0.32.0")
    node = there("gpu-1", info)
    run_submit(run=run, actor=alice, probe_override=UNPROBED)
    assert attempt_claim(run_id=run.pk, node=node, info=info)[0].gpus == 5


def test_refused_with_each_nodes_fix_until_one_has_it(maker: Maker, alice: User) -> None:
    run = maker.run(engine=SERVER)
    assert run.needs_packages == ["vllm-server"]
    assert "no node is registered" in refusal(run, alice)
    node_create(name="new")
    plain = there("plain", info_of())
    why = refusal(run, alice)
    assert ("new:" in why, "COHORT_VLLM_PYTHON" in why.partition("plain:")[2]) == (True, True)
    node_present(node=plain, info=info_of(vllm_server="0.32.0"))
    assert "engine.vllm.place: server" in refusal(maker.run(engine=COLOCATED), alice), "none beside the trainer"
    run_submit(run=run, actor=alice, probe_override=UNPROBED)
    assert fresh(run).state == RunState.QUEUED


def test_a_broken_environment_of_the_server_is_not_replaced_by_the_trainer_s_vllm(maker: Maker, alice: User) -> None:
    """As a worker tells it whose COHORT_VLLM_PYTHON is broken."""
    node, run = there("broken", info_of(3, vllm="0.32.0")), maker.run(engine=SERVER)
    assert "COHORT_VLLM_PYTHON" in refusal(run, alice)
    colocated = maker.run(engine=COLOCATED)
    run_submit(run=colocated, actor=alice, probe_override=UNPROBED)
    assert attempt_claim(run_id=colocated.pk, node=node, info=info_of(3, vllm="0.32.0"))[0].run_id == colocated.pk


def test_the_form_shows_it_beside_the_field(chosen: dict[str, str], operator: Client) -> None:
    there("plain", info_of())
    sent = chosen | {"engine.training": "deepspeed", "action": "launch"}
    response = operator.post("/p/ours/runs/new/", sent)
    assert (response.status_code, Run.objects.count()) == (422, 0)
    assert "plain" in error(response.content.decode(), "f-engine-training")


@pytest.mark.parametrize(
    ("who", "engine", "has", "lacks", "needs", "why"),
    [
        ("maker", {"training": "deepspeed"}, info_of(deepspeed="1"), info_of(), "DeepSpeed", "bad has no DeepSpeed"),
        ("coder", {}, node_info(WORKS), node_info(BROKEN), "sandbox", f"bad: {BROKEN['fix']}"),
        ("maker", SERVER | {"device": "cuda"}, info_of(2, vllm_server="1"), info_of(1, vllm_server="1"), "2 GPUs", "1"),
    ],
    ids=["package", "sandbox", "GPUs of the server"],
)
def test_it_goes_only_to_a_node_that_has_it(
    maker: Maker, coder: Maker, who: str, engine: Any, has: Any, lacks: Any, needs: str, why: str
) -> None:
    """By what the node says with its claim, not by what it said before; others are not held up."""
    good, bad = there("good", has), there("bad", lacks)
    run = {"maker": maker, "coder": coder}[who].run(engine=engine)
    run_submit(run=run, actor=maker.actor, probe_override=UNPROBED)
    assert [row.pk for row in takeable(queue(), node_capacities())] == [run.pk]
    for node in (bad, good):
        with pytest.raises(NotWaiting):
            attempt_claim(run_id=run.pk, node=node, info=lacks)
    Node.objects.update(last_seen_at=timezone.now())
    Node.objects.filter(pk=good.pk).update(last_seen_at=None)
    [row] = waiting_rows()
    assert (needs in row.needs, why in row.why) == (True, True)
    assert takeable(queue(), node_capacities()) == []
    plain = maker.run("plain")
    run_submit(run=plain, actor=maker.actor, probe_override=UNPROBED)
    assert attempt_claim(run_id=run.pk, node=bad, info=lacks)[0].run_id == plain.pk
    assert attempt_claim(run_id=run.pk, node=good, info=has)[0].run_id == run.pk


def test_code_is_refused_with_each_nodes_fix_until_a_sandbox_works(coder: Maker, alice: User, admin: Client) -> None:
    run = coder.run()
    assert run.needs_sandbox
    assert "no node is registered" in refusal(run, alice, "reward")
    there("old", node_info(None))
    broken = there("gpu-1", node_info(BROKEN))
    why = refusal(run, alice, "reward")
    assert "old: its worker has not said" in why
    assert f"gpu-1: {BROKEN['fix']}" in why
    page = admin.post(f"/p/ours/runs/{run.pk}/submit/", follow=True).content.decode()
    assert "apparmor_restrict_unprivileged_userns=0" in page
    node_present(node=broken, info=node_info(WORKS))
    Node.objects.update(revoked_at=timezone.now())
    assert "no node is registered" in refusal(run, alice, "reward"), "a revoked one's does not count"
    Node.objects.update(revoked_at=None, last_seen_at=None)
    run_submit(run=run, actor=alice, probe_override=UNPROBED)
    assert fresh(run).state == RunState.QUEUED, "a silent one's does"
