"""GPUs and packages that a run needs of its node: refused at its launch where no node has them, else given only to a
node that does; and runs of before a run knew how many GPUs it needs.
"""

from importlib import import_module
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from cohort.accounts.models import User
from cohort.runs.attempts import NotWaiting, attempt_claim
from cohort.runs.models import Node, Run, RunState
from cohort.runs.nodes import node_create, node_present
from cohort.runs.schedule import queue, seats, takeable
from cohort.runs.selectors.queue import waiting_rows
from cohort.runs.services import gpus_needed, run_submit
from grpo_core.config import RunConfig
from grpo_core.errors import ConfigError
from grpo_core.wire import NodeInfo
from tests.factories.runs import Maker
from tests.factories.worker import NODE
from tests.tables import cases
from tests.web.control import fresh
from tests.web.form_page import error

pytestmark = pytest.mark.django_db

GPU = {"kind": "cuda", "name": "NVIDIA H200", "memory_bytes": 141 * 10**9}
SERVER = {"rollout": "vllm", "device": "cpu", "vllm": {"place": "server"}}
COLOCATED = {"rollout": "vllm"}


def info_of(gpus: int = 0, **versions: str) -> NodeInfo:
    named = {name.replace("_", "-"): version for name, version in versions.items()}
    return NODE.model_copy(update={"versions": named, "devices": [*NODE.devices, *[GPU] * gpus]})


def there(name: str, info: NodeInfo) -> Node:
    node, _ = node_create(name=name)
    node_present(node=node, info=info)
    node.refresh_from_db()
    return node


def refusal(run: Run, actor: User) -> str:
    """Why the launch is refused, always at engine.rollout."""
    with pytest.raises(ConfigError) as error:
        run_submit(run=run, actor=actor)
    assert fresh(run).state == RunState.DRAFT
    [problem] = error.value.problems
    assert problem.path == "engine.rollout"
    return problem.message


@pytest.mark.parametrize(("engine", "gpus"), cases("runs/gpus", "engine", "gpus"))
def test_gpus_of_the_trainer_and_of_its_server(maker: Maker, engine: dict[str, Any], gpus: int) -> None:
    run = maker.run(engine=engine)
    assert gpus_needed(RunConfig.from_whole(run.config)) == run.gpus == gpus


def test_what_a_run_holds_counts_the_server_once(maker: Maker, alice: User) -> None:
    run = maker.run(engine={"rollout": "vllm", "vllm": {"place": "server"}, "devices": 2, "nodes": 2})
    info = info_of(3, vllm_server="0.32.0")
    node = there("gpu-1", info)
    run_submit(run=run, actor=alice)
    claimed = attempt_claim(run_id=run.pk, node=node, info=info)
    assert claimed.attempt.gpus == 5


def test_refused_with_each_nodes_fix_until_one_has_it(maker: Maker, alice: User) -> None:
    run = maker.run(engine=SERVER)
    assert run.needs_packages == ["vllm-server"]
    assert "no node is registered" in refusal(run, alice)
    node_create(name="new")
    plain = there("plain", info_of())
    why = refusal(run, alice)
    assert ("new:" in why, "COHORT_VLLM_PYTHON" in why.partition("plain:")[2]) == (True, True)
    node_present(node=plain, info=info_of(vllm_server="0.32.0"))
    run_submit(run=run, actor=alice)
    assert fresh(run).state == RunState.QUEUED


def test_a_server_in_an_environment_of_its_own_is_none_beside_the_trainer(maker: Maker, alice: User) -> None:
    there("server", info_of(vllm_server="0.32.0"))
    run = maker.run(engine=COLOCATED)
    assert "engine.vllm.place: server" in refusal(run, alice)


def test_the_trainer_s_own_vllm_starts_no_server_where_another_environment_is_named_for_it(
    maker: Maker, alice: User
) -> None:
    """As a worker tells it whose COHORT_VLLM_PYTHON is broken."""
    node, run = there("broken", info_of(3, vllm="0.32.0")), maker.run(engine=SERVER)
    assert "COHORT_VLLM_PYTHON" in refusal(run, alice)
    beside = maker.run(engine=COLOCATED)
    run_submit(run=beside, actor=alice)
    assert attempt_claim(run_id=beside.pk, node=node, info=info_of(3, vllm="0.32.0")).attempt.run_id == beside.pk


def test_the_form_shows_it_beside_the_field(chosen: dict[str, str], operator: Client) -> None:
    there("plain", info_of())
    sent = chosen | {"engine.training": "deepspeed", "action": "launch"}
    response = operator.post("/p/ours/runs/new/", sent)
    assert (response.status_code, Run.objects.count()) == (422, 0)
    assert "plain" in error(response.content.decode(), "f-engine-training")


def test_it_goes_only_to_a_node_that_has_it(maker: Maker, alice: User) -> None:
    good, bad = there("good", info_of(deepspeed="0.18.0")), there("bad", info_of())
    run = maker.run(engine={"training": "deepspeed"})
    run_submit(run=run, actor=alice)
    assert [one.pk for one in takeable(queue(), seats())] == [run.pk]
    with pytest.raises(NotWaiting, match="DeepSpeed"):
        attempt_claim(run_id=run.pk, node=bad, info=info_of())
    Node.objects.filter(pk=good.pk).update(last_seen_at=None)
    [row] = waiting_rows()
    assert "DeepSpeed" in row.needs
    assert "bad has no DeepSpeed" in row.why
    assert takeable(queue(), seats()) == []
    assert attempt_claim(run_id=run.pk, node=good, info=info_of(deepspeed="0.18.0")).attempt.run_id == run.pk


def test_a_node_with_too_few_gpus_for_the_server_gets_none(maker: Maker, alice: User) -> None:
    there("small", info_of(1, vllm_server="0.32.0"))
    run = maker.run(engine={"rollout": "vllm", "vllm": {"place": "server"}})
    run_submit(run=run, actor=alice)
    [row] = waiting_rows()
    assert "2 GPUs" in row.needs
    assert "small has 1" in row.why


@pytest.mark.parametrize(("engine", "before", "after"), cases("runs/gpus_of_earlier", "engine", "before", "after"))
def test_an_earlier_run_needs_as_many_gpus_as_its_config_names(
    maker: Maker, engine: dict[str, object], before: int, after: int
) -> None:
    run = maker.run(state="failed")
    Run.objects.filter(pk=run.pk).update(config=run.config | {"engine": engine}, gpus=before)
    with connection.cursor() as cursor:
        cursor.execute(import_module("migrations.runs.0007_gpus_of_earlier_runs").BACKFILL)
    assert (fresh(run).gpus, run.state) == (after, "failed")
    assert run.gpus == gpus_needed(RunConfig.from_whole(run.config)), "as a run that is made now"
