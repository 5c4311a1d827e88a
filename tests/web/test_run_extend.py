"""More steps for a run, its priority, its pins and where it may go, each met by a worker's own calls."""

import pytest

from cohort.accounts.models import User
from cohort.runs.models import Attempt, Checkpoint, Node, Run, RunEvent
from cohort.runs.services import (
    NotPossible,
    checkpoint_pin,
    run_create,
    run_extend,
    run_pause,
    run_prioritise,
    run_retry,
)
from cohort.runs.transitions import IllegalTransition
from grpo_core.config import RunConfig
from grpo_core.errors import ConfigError
from tests.web.control import at, attempt, beat, checkpoint, claim, claimed, failed, fresh, gpu1, kinds, run, train
from tests.web.run_rows import Maker, put_in

__all__ = ["attempt", "failed", "gpu1", "run"]  # fixtures

pytestmark = pytest.mark.django_db


# ---------------------------------------------------------------------- extend


def test_extended_by_three_steps_it_goes_on(failed: Run, alice: User, gpu1: Node) -> None:
    before = RunConfig.from_whole(failed.config)
    run_extend(run=failed, actor=alice, steps=3)
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
    first = Checkpoint.objects.get(run=failed, step=0)
    run_retry(run=failed, actor=alice, checkpoint=first)
    run_pause(run=failed, actor=alice)
    run_extend(run=failed, actor=alice, steps=3)
    assert [offer.step for offer in claimed(gpu1).resume] == [0]


def test_a_run_that_begins_anew_is_not_extended_on_the_way(failed: Run, alice: User) -> None:
    run_retry(run=failed, actor=alice, from_start=True)
    run_pause(run=failed, actor=alice)
    with pytest.raises(NotPossible):
        run_extend(run=failed, actor=alice, steps=3)


def test_a_claimed_run_stands_where_it_will_go_on(failed: Run, alice: User, gpu1: Node) -> None:
    Run.objects.filter(pk=failed.pk).update(step=9)
    run_retry(run=failed, actor=alice)
    assert claimed(gpu1).resume[0].step == 2
    assert fresh(failed).step == 2


def test_what_cannot_be_extended_is_refused(failed: Run, maker: Maker, alice: User) -> None:
    for steps in (0, 2**31):
        with pytest.raises((NotPossible, ConfigError)):
            run_extend(run=failed, actor=alice, steps=steps)
    with pytest.raises(NotPossible):  # no checkpoint to go on from
        run_extend(run=maker.run(state="succeeded"), actor=alice, steps=5)
    for state in ("draft", "queued", "training", "sealing"):
        with pytest.raises(IllegalTransition):
            run_extend(run=maker.run(state=state), actor=alice, steps=5)
    assert fresh(failed).steps_total == 100


def test_a_succeeded_run_is_extended_and_succeeds_again(run: Run, attempt: Attempt, alice: User, gpu1: Node) -> None:
    put_in(fresh(run), "sealing")
    Attempt.objects.filter(pk=attempt.pk).update(state="finished")
    put_in(run, "succeeded")
    run_extend(run=run, actor=alice, steps=1)
    assert claim(gpu1).fence == 2


# ---------------------------------------------------------------------- priority, pins, placing


def test_priority_is_changed_and_written_down(run: Run, maker: Maker, alice: User) -> None:
    run_prioritise(run=run, actor=alice, priority=10)
    run_prioritise(run=run, actor=alice, priority=10)
    assert fresh(run).priority == 10
    assert [entry[:2] for entry in kinds(run)] == [("priority", "user:alice")]
    with pytest.raises(NotPossible):
        run_prioritise(run=run, actor=alice, priority=3)
    with pytest.raises(NotPossible):
        run_prioritise(run=maker.run(state="failed"), actor=alice, priority=10)


def test_a_pinned_checkpoint_is_told_to_the_worker(run: Run, attempt: Attempt, alice: User) -> None:
    kept = at(run, 2)
    checkpoint_pin(checkpoint=kept, actor=alice, pinned=True)
    checkpoint_pin(checkpoint=kept, actor=alice, pinned=True)
    assert beat(attempt) == ("run", [2])
    checkpoint_pin(checkpoint=kept, actor=alice, pinned=False)
    assert beat(attempt) == ("run", [])
    assert [kind for kind, _, _ in kinds(run)] == ["checkpoint_pinned", "checkpoint_unpinned"]
    Checkpoint.objects.filter(pk=kept.pk).update(removed_at="2026-11-21T12:00:00Z")
    with pytest.raises(NotPossible):
        checkpoint_pin(checkpoint=kept, actor=alice, pinned=True)
    train(attempt, checkpoint(2, final=True))
    with pytest.raises(NotPossible):
        checkpoint_pin(checkpoint=Checkpoint.objects.get(final=True), actor=alice, pinned=True)


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
