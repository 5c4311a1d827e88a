"""Pause, resume, cancel, retry, more steps, priority, pins and placing, each met by a worker's own calls."""

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from cohort.accounts.models import User
from cohort.launch.creation import run_create, run_submit
from cohort.nodes.models import Node
from cohort.runs import services
from cohort.runs.checkpoints import offers, pinned
from cohort.runs.models import Attempt, Checkpoint, Run, RunEvent, RunState
from cohort.runs.services import NotPossible
from cohort.runs.transitions import IllegalTransition
from grpo_core.config.run import RunConfig
from grpo_core.errors import ConfigError
from tests.factories.runs import UNPROBED, Maker, add_checkpoint, put_in
from tests.tables import cases
from tests.web.control import (
    beat,
    checkpoint,
    claim,
    claimed,
    finish,
    fresh,
    let_pass,
    resumed,
    steps,
    train,
    waited_for_its_record,
)
from tests.worker.queues import take_all


@pytest.fixture
def run(maker: Maker, alice: User) -> Run:
    run = maker.run()
    run_submit(run=run, actor=alice, probe_override=UNPROBED)
    return run


@pytest.fixture
def attempt(run: Run, gpu1: Node) -> Attempt:
    """Two steps in, with checkpoints at 0 and 2."""
    return train(claim(gpu1), checkpoint(0), *steps(1, 2), checkpoint(2))


@pytest.fixture
def failed(attempt: Attempt) -> Run:
    return waited_for_its_record(finish(attempt, "failed", "out_of_memory", "No memory"))


def kinds(run: Run) -> list[tuple[str, str, str]]:
    """What people did since its launch: (kind, actor, message)."""
    events = RunEvent.objects.filter(run=run, actor__startswith="user:").exclude(
        kind__in=["created", "state", "prompts_unchecked"]
    )
    return list(events.values_list("kind", "actor", "message"))


def at(run: Run, step: int) -> Checkpoint:
    return Checkpoint.objects.get(run=run, step=step, final=False)


# ---------------------------------------------------------------------- pause and resume


def test_a_worker_pauses_a_live_run(run: Run, attempt: Attempt, alice: User, gpu1: Node, committed: Any) -> None:
    """Whoever asked is a person: an event of that kind by a trainer, as older versions stored it, says nothing."""
    take_all("train")
    take_all("platform.seal")
    assert beat(attempt) == ("run", [])
    services.run_pause(run=run, actor=alice, reason="lunch")
    services.run_pause(run=run, actor=alice, reason="again")
    assert (fresh(run).state, run.desired) == ("training", "pause")
    assert kinds(run) == [("pause_asked", "user:alice", "lunch")]
    assert beat(attempt) == ("pause", [])
    forged = {"actor": "trainer", "kind": "pause_asked", "message": "x", "data": {"reason": "forged"}}
    RunEvent.objects.create(run=run, at=timezone.now(), **forged)
    with committed():
        run = finish(attempt, "paused")
    assert (run.state, run.desired) == ("paused", "run")
    assert "by alice after 2 steps: lunch" in run.reason
    assert (run.ended_at, run.log_tail, take_all("platform.seal")) == (None, "tail of ", [])
    Run.objects.update(retries=4, barren=2)
    with committed():
        services.run_resume(run=run, actor=alice)
    assert (fresh(run).retries, run.barren, take_all("train")) == (0, 0, [[run.pk]])
    assert [offer.step for offer in claimed(gpu1).resume] == [2, 0]


def test_a_pause_is_taken_back(run: Run, attempt: Attempt, alice: User) -> None:
    services.run_pause(run=run, actor=alice)
    services.run_resume(run=run, actor=alice)
    assert beat(attempt)[0] == "run"
    assert [kind for kind, _, _ in kinds(run)] == ["pause_asked", "pause_withdrawn"]
    assert finish(attempt, "paused").state == "queued", "its worker had heard of the pause and not of the rest"


@pytest.mark.parametrize(
    ("action", "allowed"),
    [
        (services.run_pause, {"queued", "starting", "training", "evaluating"}),
        (services.run_resume, {"paused"}),
        (services.run_retry, {"failed", "cancelled"}),
    ],
)
def test_other_states_refuse_an_action(
    maker: Maker, alice: User, action: Callable[..., None], allowed: set[str]
) -> None:
    for state in sorted(set(RunState.values) - allowed):
        run = maker.run(state=state)
        with pytest.raises(IllegalTransition) as refused:
            action(run=run, actor=alice)
        assert fresh(run).state == refused.value.state == state


# ---------------------------------------------------------------------- cancel


def test_cancel_goes_before_a_pause_and_is_not_taken_back(run: Run, attempt: Attempt, alice: User) -> None:
    services.run_pause(run=run, actor=alice)
    services.run_cancel(run=run, actor=alice, reason="wrong model")
    assert beat(attempt)[0] == "cancel"
    with pytest.raises(NotPossible):
        services.run_pause(run=run, actor=alice)
    with pytest.raises(IllegalTransition):
        services.run_resume(run=run, actor=alice)
    run = finish(attempt, "cancelled")
    assert run.state == "cancelled"
    assert "by alice after 2 steps: wrong model" in run.reason


FIELDS = ("wanted", "end", "code", "state", "reason")


@pytest.mark.parametrize(FIELDS, cases("runs/asked_and_ended", *FIELDS))
def test_what_was_asked_for_meets_an_end(
    run: Run, attempt: Attempt, alice: User, wanted: str | None, end: str, code: str, state: str, reason: str
) -> None:
    if wanted:
        getattr(services, f"run_{wanted}")(run=run, actor=alice)
    run = finish(attempt, end, code, "Silence")
    assert (run.state, run.retries) == (state, 0)
    assert reason in run.reason


def test_cancel_of_a_paused_run_is_sealed_and_of_one_that_never_ran_is_not(
    maker: Maker, run: Run, attempt: Attempt, alice: User, committed: Any
) -> None:
    services.run_pause(run=run, actor=alice)
    run = finish(attempt, "paused")
    take_all("platform.seal")
    with committed():
        services.run_cancel(run=run, actor=alice)
        services.run_cancel(run=maker.run(state="queued"), actor=alice)
    assert take_all("platform.seal") == [[run.pk]]


# ---------------------------------------------------------------------- failures in a row


@pytest.mark.parametrize(("end", "code"), [("preempted", "worker_shutdown"), ("paused", "disk_full")])
@pytest.mark.parametrize("further", [True, False])
def test_failures_with_progress_between_them_are_not_in_a_row(
    run: Run, attempt: Attempt, gpu1: Node, alice: User, end: str, code: str, further: bool
) -> None:
    """Two failures that brought nothing, then an attempt that ends otherwise, then a third failure. It is the run's
    third in a row only when that attempt brought nothing either; a resume by a person is left out of this."""
    finish(attempt, "preempted", "worker_shutdown")
    for _ in range(2):
        let_pass(finish(train(claim(gpu1), resumed(2)), "failed", "nccl_error"))
    assert fresh(run).barren == 2
    between = train(claim(gpu1), resumed(2), *(steps(3, 9) if further else []))
    finish(between, end, code)
    assert fresh(run).barren == (0 if further else 2)
    if run.state == "paused":
        put_in(run, "queued")
    last = train(claim(gpu1), resumed(2))
    assert finish(last, "failed", "nccl_error").state == ("queued" if further else "failed")


# ---------------------------------------------------------------------- retry


def test_a_failed_run_goes_on_from_its_newest_checkpoint(failed: Run, alice: User, gpu1: Node, committed: Any) -> None:
    assert (failed.state, failed.reason, failed.error_code) == ("failed", "No memory", "out_of_memory")
    take_all("train")
    Run.objects.update(retries=3, barren=2, step=9)
    with committed():
        services.run_retry(run=failed, actor=alice, reason="more memory now")
    run = fresh(failed)
    assert (run.state, run.reason, run.error_code, run.log_tail) == ("queued", "", "", "")
    assert (run.retries, run.barren, run.ended_at, take_all("train")) == (0, 0, None, [[run.pk]])
    assert [entry[:2] for entry in kinds(run)] == [("retried", "user:alice")]
    assert kinds(run)[0][2].endswith("from step 2: more memory now")
    again = claimed(gpu1)
    assert (again.attempt.fence, [offer.step for offer in again.resume], fresh(run).step) == (2, [2, 0], 2)
    assert Attempt.objects.get(fence=1).valid_through is None, "nothing is superseded before the trainer continued"


def test_a_chosen_checkpoint_stays_until_it_was_gone_on_from(failed: Run, alice: User, gpu1: Node) -> None:
    services.run_retry(run=failed, actor=alice, checkpoint=at(failed, 0))
    first = claimed(gpu1)
    assert [offer.step for offer in first.resume] == [0]
    finish(first.attempt, "preempted", "worker_shutdown")
    second = claimed(gpu1)
    assert [offer.step for offer in second.resume] == [0], "the first had not gone on yet"
    train(second.attempt, resumed(0), *steps(1, 1), checkpoint(1))
    run = finish(second.attempt, "preempted", "worker_shutdown")
    assert run.resume_from is None
    assert [(offer.fence, offer.step) for offer in offers(run)] == [(3, 1), (1, 0)]


def test_from_the_first_step_nothing_earlier_stands(failed: Run, alice: User, gpu1: Node) -> None:
    services.run_retry(run=failed, actor=alice, from_start=True)
    services.run_pause(run=failed, actor=alice)
    with pytest.raises(NotPossible):
        services.run_extend(run=failed, actor=alice, steps=3)
    services.run_resume(run=failed, actor=alice)
    assert claimed(gpu1).resume == [], "the choice outlives a pause in the queue"
    run = fresh(failed)
    assert (run.from_start, run.step, run.latest_metrics) == (False, 0, {})
    assert Attempt.objects.get(fence=1).valid_through == -1


def test_nothing_goes_on_from_what_is_not_there(failed: Run, maker: Maker, alice: User, gpu1: Node) -> None:
    other = train(claim(gpu1, maker.run(state="queued").pk), *steps(1, 9), checkpoint(7), checkpoint(9, final=True))
    Checkpoint.objects.filter(run=failed, step=0).update(removed_at="2026-11-21T12:00:00Z")
    for chosen in (at(failed, 0), at(other.run, 7)):
        with pytest.raises(NotPossible):
            services.run_retry(run=failed, actor=alice, checkpoint=chosen)
    with pytest.raises(NotPossible):
        services.run_retry(run=failed, actor=alice, checkpoint=at(failed, 2), from_start=True)
    other = Attempt.objects.get(pk=other.pk)
    ended = waited_for_its_record(finish(other, "failed", "reward_error"))
    with pytest.raises(NotPossible):
        services.run_retry(run=ended, actor=alice, checkpoint=Checkpoint.objects.get(final=True))
    assert fresh(failed).state == "failed"


# ---------------------------------------------------------------------- offered


def offered(run: Run) -> list[tuple[int, int, bool]]:
    run.refresh_from_db()
    return [(offer.step, offer.fence, offer.stored) for offer in offers(run)]


def test_offers_are_newest_first_of_what_stands_and_is_held(maker: Maker) -> None:
    run = maker.run(state="training")
    first = maker.attempt(run, state="lost")
    for number in (0, 20, 40, 60):
        add_checkpoint(first, number, pinned=number > 20)
    first.valid_through = 40
    first.save()
    second = maker.attempt(run)
    add_checkpoint(second, 50, stored=True)
    add_checkpoint(second, 60, removed=True)
    add_checkpoint(second, 45, removed=True, stored=True)  # it made room there, and the platform still has it
    add_checkpoint(second, 60, final=True)
    add_checkpoint(second, 40, pinned=True, removed=True)
    assert offered(run) == [(50, 2, True), (45, 2, True), (40, 1, False), (20, 1, False), (0, 1, False)]
    newest = offers(run)[0]
    assert (newest.path, newest.files["state.json"].size) == ("checkpoints/step-000050", 1000)


def test_pins_are_of_what_stands(maker: Maker) -> None:
    run = maker.run(state="training")
    first = maker.attempt(run, state="lost")
    for number in (20, 40, 60):
        add_checkpoint(first, number, pinned=number != 20)
    first.valid_through = 40
    first.save()
    second = maker.attempt(run)
    for number in (40, 60, 80):
        add_checkpoint(second, number, pinned=number != 60)
    assert pinned(run) == [40, 80]


def test_a_chosen_checkpoint_comes_first_and_from_the_start_none(maker: Maker) -> None:
    run = maker.run(state="failed")
    attempt = maker.attempt(run, state="failed")
    made = {number: add_checkpoint(attempt, number) for number in (0, 20, 40)}
    Run.objects.update(from_start=True)
    assert offered(run) == []
    Run.objects.update(from_start=False, resume_from=made[20])
    assert offered(run) == [(20, 1, False), (0, 1, False)]
    Checkpoint.objects.update(removed_at=timezone.now())
    assert offered(run) == [(20, 1, False)], "an attempt that cannot have it says so, and does not begin anew"


# ---------------------------------------------------------------------- extend


def test_extended_by_three_steps_it_goes_on(failed: Run, alice: User, gpu1: Node) -> None:
    before = RunConfig.from_whole(failed.config)
    services.run_extend(run=failed, actor=alice, steps=3)
    run = fresh(failed)
    config = RunConfig.from_whole(run.config)
    assert (run.state, run.steps_total, config.optim.steps) == ("queued", 103, 103)
    assert run.config_digest == config.digest() != before.digest()
    assert config.model_copy(update={"optim": before.optim}) == before
    assert RunEvent.objects.get(run=run, kind="extended").data == {
        "before": {"steps": 100, "config_digest": before.digest()},
        "after": {"steps": 103, "config_digest": config.digest()},
    }
    again = claimed(gpu1)
    assert [offer.step for offer in again.resume] == [2, 0]
    assert again.attempt.run.config["optim"]["steps"] == 103


def test_extending_keeps_the_checkpoint_that_was_chosen_before(failed: Run, alice: User, gpu1: Node) -> None:
    services.run_retry(run=failed, actor=alice, checkpoint=at(failed, 0))
    services.run_pause(run=failed, actor=alice)
    services.run_extend(run=failed, actor=alice, steps=3)
    assert [offer.step for offer in claimed(gpu1).resume] == [0]


def test_what_cannot_be_extended_is_refused(failed: Run, maker: Maker, alice: User) -> None:
    for more in (0, 2**31):
        with pytest.raises((NotPossible, ConfigError)):
            services.run_extend(run=failed, actor=alice, steps=more)
    with pytest.raises(NotPossible):  # no checkpoint to resume from
        services.run_extend(run=maker.run(state="succeeded"), actor=alice, steps=5)
    for state in ("draft", "queued", "training", "sealing"):
        with pytest.raises(IllegalTransition):
            services.run_extend(run=maker.run(state=state), actor=alice, steps=5)
    assert fresh(failed).steps_total == 100


# ---------------------------------------------------------------------- priority, pins, placing


def test_priority_is_changed_and_written_down(run: Run, maker: Maker, alice: User) -> None:
    services.run_prioritise(run=run, actor=alice, priority=10)
    services.run_prioritise(run=run, actor=alice, priority=10)
    assert fresh(run).priority == 10
    assert [entry[:2] for entry in kinds(run)] == [("priority", "user:alice")]
    with pytest.raises(NotPossible):
        services.run_prioritise(run=run, actor=alice, priority=3)
    with pytest.raises(NotPossible):
        services.run_prioritise(run=maker.run(state="failed"), actor=alice, priority=10)


def test_a_pinned_checkpoint_is_told_to_the_worker(run: Run, attempt: Attempt, alice: User) -> None:
    kept = at(run, 2)
    services.checkpoint_pin(checkpoint=kept, actor=alice, pinned=True)
    services.checkpoint_pin(checkpoint=kept, actor=alice, pinned=True)
    assert beat(attempt) == ("run", [2])
    services.checkpoint_pin(checkpoint=kept, actor=alice, pinned=False)
    assert beat(attempt) == ("run", [])
    assert [kind for kind, _, _ in kinds(run)] == ["checkpoint_pinned", "checkpoint_unpinned"]
    Checkpoint.objects.filter(pk=kept.pk).update(removed_at="2026-11-21T12:00:00Z")
    with pytest.raises(NotPossible):
        services.checkpoint_pin(checkpoint=kept, actor=alice, pinned=True)
    train(attempt, checkpoint(2, final=True))
    with pytest.raises(NotPossible):
        services.checkpoint_pin(checkpoint=Checkpoint.objects.get(final=True), actor=alice, pinned=True)


def test_where_a_run_may_go_is_checked(maker: Maker, alice: User, charlie: User) -> None:
    made = {**maker._named("placed"), "settings": {"eval": {"holdout": 4}}}
    first = run_create(**made, priority=-10, node_label="a100")
    second = run_create(**made, cloned_from=first)
    assert (first.priority, first.node_label, second.cloned_from) == (-10, "a100", first)
    with pytest.raises(ConfigError) as refused:
        run_create(**made, priority=7, node_label="no.dots")
    assert [problem.path for problem in refused.value.problems] == ["priority", "node_label"]
    Run.objects.filter(pk=first.pk).update(project=charlie.projects.get())
    first.refresh_from_db()
    with pytest.raises(ConfigError, match="cloned_from"):
        run_create(**made, cloned_from=first)
