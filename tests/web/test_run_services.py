"""The services of runs: created with every field checked, queued, cancelled, sealed; nothing out of order."""

from typing import Any

import pytest
from celery import Celery

from cohort.accounts.models import User
from cohort.base.environment import environment
from cohort.catalog.models import PromptDataset, VerifierVersion
from cohort.catalog.services import base_model_register
from cohort.launch.creation import run_create, run_launch, run_submit
from cohort.runs.dispatch import waiting_messages
from cohort.runs.models import Run, RunEvent, RunState
from cohort.runs.services import run_cancel, run_sealed
from cohort.runs.transitions import ALLOWED, ENDED, IllegalTransition, run_move
from grpo_core.config.run import RunConfig
from grpo_core.errors import ConfigError
from tests.factories.runs import UNPROBED, Maker, put_in
from tests.needs import needs
from tests.tables import cases
from tests.web.control import fresh
from tests.worker.queues import take_all

HOLDOUT = {"eval": {"holdout": 5}}


@pytest.fixture
def made(maker: Maker) -> dict[str, Any]:
    """Everything a run is made from."""
    take_all("train")
    return {**maker._named("first"), "settings": HOLDOUT}


@pytest.fixture
def run(made: dict[str, Any]) -> Run:
    return run_create(**made)


def problems_of(made: dict[str, Any], **changed: Any) -> list[str]:
    """Paths at fault."""
    with pytest.raises(ConfigError) as caught:
        run_create(**{**made, **changed})
    assert Run.objects.count() == 0
    return [problem.path for problem in caught.value.problems]


def moves(run: Run) -> list[tuple[str, str, str]]:
    """(from, to, actor) of every move."""
    events = RunEvent.objects.filter(run=run, kind="state")
    return [(event.data["from"], event.data["to"], event.actor) for event in events]


# ---------------------------------------------------------------------- create


def test_config_holds_what_was_chosen(run: Run, dataset: PromptDataset) -> None:
    config = RunConfig.from_dict(run.config)
    assert (config.name, config.model.path, config.data.path) == ("first", "tiny", f"inputs/{dataset.sha256}.jsonl")
    assert (config.eval.path, config.eval.holdout) == (None, 5)
    assert [component.name for component in config.reward.components] == ["format", "answer"]
    assert (run.state, run.steps_total, run.config_digest) == (RunState.DRAFT, 100, config.digest())


def test_preset_and_held_out_dataset_fill_in_settings(made: dict[str, Any], heldout: PromptDataset) -> None:
    settings = {"preset": "dapo", "sampling": {"group_size": 4}, "eval": {"limit": 3}}
    run = run_create(**{**made, "eval_dataset": heldout, "settings": settings})
    config = RunConfig.from_dict(run.config)
    assert (run.preset, config.sampling.group_size) == ("dapo", 4)
    assert config.algorithm.clip_high == 0.28  # DAPO, section 3.1
    assert (config.eval.path, config.eval.limit) == (f"inputs/{heldout.sha256}.jsonl", 3)
    one_to_train_on = {"data": {"limit": 8}, "eval": {"holdout": 7}}
    run_create(**{**made, "settings": one_to_train_on})


@pytest.mark.parametrize(("settings", "paths"), cases("runs/settings_refused", "settings", "paths"))
def test_settings_are_refused_at_their_fields(made: dict[str, Any], settings: dict[str, Any], paths: list[str]) -> None:
    assert sorted(problems_of(made, settings=settings)) == paths


def test_rows_are_refused_at_their_fields(
    made: dict[str, Any], charlie: User, tiny_model_folder: str, verifier_version: VerifierVersion
) -> None:
    assert problems_of(made, eval_dataset=made["dataset"], settings={}) == ["eval_dataset"]
    theirs = charlie.projects.get()
    foreign = base_model_register(project=theirs, actor=charlie, name="tiny", path=tiny_model_folder)
    assert problems_of(made, base_model=foreign) == ["base_model"]
    # As if stored by an older version that knew the parameter.
    verifier_version.spec["components"][1]["params"] = {"no_such": 1}
    verifier_version.save()
    assert problems_of(made, verifier_version=verifier_version) == ["reward.components.1.params.no_such"]


# ---------------------------------------------------------------------- the queue


def test_submit_queues_and_sends_one_message_after_commit(run: Run, alice: User, committed: Any) -> None:
    with committed() as sent:
        run_submit(run=run, actor=alice, probe_override=UNPROBED)
        assert take_all("train") == [], "not before the commit"
    assert len(sent) == 1
    assert take_all("train") == [[run.pk]]
    assert fresh(run).state == RunState.QUEUED
    assert run.queued_at is not None
    assert moves(run) == [("draft", "queued", "user:alice")]


def test_only_a_draft_is_submitted(maker: Maker, alice: User) -> None:
    for state in ("queued", "paused", "succeeded", "failed", "cancelled"):
        run = maker.run(state=state)
        with pytest.raises(IllegalTransition):
            run_submit(run=run, actor=alice, probe_override=UNPROBED)
        assert fresh(run).state == state


def test_launch_creates_and_queues_or_neither(made: dict[str, Any]) -> None:
    assert run_launch(**made, probe_override=UNPROBED).state == RunState.QUEUED
    with pytest.raises(ConfigError):
        run_launch(**{**made, "settings": {}}, probe_override=UNPROBED)
    assert Run.objects.count() == 1


def test_a_submit_outlives_its_broker(run: Run, alice: User, monkeypatch: pytest.MonkeyPatch, committed: Any) -> None:
    unreachable = Celery("unreachable", broker="amqp://127.0.0.1:1//", set_as_current=False)
    unreachable.conf.task_publish_retry = False
    unreachable.conf.broker_transport_options = {"max_retries": 1, "interval_start": 0, "interval_step": 0}
    monkeypatch.setattr("cohort.runs.dispatch.app", unreachable)
    with committed():
        run_submit(run=run, actor=alice, probe_override=UNPROBED)
    assert fresh(run).state == RunState.QUEUED
    assert waiting_messages("train") is None


def test_a_redis_that_refuses_to_count_is_a_broker_that_cannot_be_asked() -> None:
    """Its client's errors are its own, and no OSError."""
    needs("redis")
    from redis import Redis

    with Redis.from_url(environment().resolved_broker_url()) as redis:
        redis.set("no-queue", "no list")
        try:
            assert waiting_messages("no-queue") is None
        finally:
            redis.delete("no-queue")


# ---------------------------------------------------------------------- states


def test_each_move_that_the_table_lacks_is_refused_and_leaves_no_trace(run: Run) -> None:
    for state in RunState:
        for to in RunState:
            if to in ALLOWED[state]:
                continue
            put_in(run, state)
            written = RunEvent.objects.count()
            with pytest.raises(IllegalTransition):
                run_move(run=run, to=to, actor="platform")
            assert (fresh(run).state, RunEvent.objects.count()) == (state, written)


def test_an_ended_run_goes_nowhere_but_back_to_the_queue() -> None:
    assert {state for state, following in ALLOWED.items() if following == {RunState.QUEUED}} == ENDED


def test_the_whole_way_is_written_down_and_back_in_the_queue_nothing_of_the_end_is_left(run: Run) -> None:
    way = ["queued", "starting", "evaluating", "training", "evaluating", "training"]
    for state in way:
        run_move(run=run, to=RunState(state), actor="platform")
    Run.objects.filter(pk=run.pk).update(desired="cancel", stalled_at="2026-11-21T12:00:00Z")
    run_move(run=fresh(run), to=RunState.FAILED, actor="node:a", reason="no memory", error_code="out_of_memory")
    assert [to for _, to, _ in moves(run)] == [*way, "failed"]
    assert (run.desired, run.stalled_at) == ("run", None)
    assert run.queued_at <= run.started_at <= run.ended_at  # type: ignore[operator]
    run_move(run=run, to=RunState.QUEUED, actor="user:alice")
    assert (fresh(run).reason, run.error_code, run.ended_at) == ("", "", None)


def test_a_waiting_run_is_cancelled_at_once_a_live_one_by_its_worker_an_ended_one_never(
    maker: Maker, run: Run, alice: User
) -> None:
    run_submit(run=run, actor=alice, probe_override=UNPROBED)
    run_cancel(run=run, actor=alice, reason="wrong model")
    assert fresh(run).state == RunState.CANCELLED
    assert run.reason.endswith("by alice before it started: wrong model")
    assert run.ended_at is not None
    live = maker.run(state="training")
    run_cancel(run=live, actor=alice)
    run_cancel(run=live, actor=alice)
    assert (fresh(live).state, live.desired) == (RunState.TRAINING, "cancel")
    assert RunEvent.objects.filter(run=live, kind="cancel_asked", actor="user:alice").count() == 1
    for state in ("sealing", "succeeded", "failed", "cancelled"):
        with pytest.raises(IllegalTransition) as refused:
            run_cancel(run=maker.run(state=state), actor=alice)
        assert refused.value.state == state


def test_sealing_ends_in_success_and_reported_late_or_twice_changes_nothing(run: Run) -> None:
    put_in(run, "sealing")
    run_sealed(run=run)
    run_sealed(run=run)
    assert fresh(run).state == RunState.SUCCEEDED
    assert moves(run) == [("sealing", "succeeded", "platform")]
    for state in ("failed", "queued", "paused", "training"):
        put_in(run, state)
        run_sealed(run=run)
        assert fresh(run).state == state
