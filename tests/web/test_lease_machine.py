"""The lease as a state machine: nodes, people and the reconciler do what they may and what they may not, in any order,
through the real services on PostgreSQL. After every step: no run has two owners, what is not an owner's has written
nothing, every state followed from the one before and stands in the events, and no run is stuck.

What must come of each step is worked out here on its own, from the rules in docs/worker-protocol.md.
"""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import pytest
from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cohort.accounts.models import Project, User
from cohort.background.reconcile import attempts_lost
from cohort.ingest.copy import BadRecord
from cohort.nodes.leases import NotWaiting, StaleFence
from cohort.nodes.models import Node
from cohort.runs.attempts import attempts_released
from cohort.runs.models import Attempt, Checkpoint, Run, RunEvent, StepMetric
from cohort.runs.services import NotPossible, run_cancel, run_pause, run_resume, run_retry, run_sealed
from cohort.runs.transitions import IllegalTransition
from grpo_core.protocol.messages import LostAttempt, LostAttempts
from grpo_core.records import types as records
from tests.factories.runs import Maker
from tests.factories.sealed_run import ingest
from tests.web.control import beat, checkpoint, claim, claimed, finish, node, resumed, waited_for_its_record

pytestmark = pytest.mark.django_db

RUNS, NODES, LIMIT = 5, 4, 3
LIVE = {"starting", "training"}
AUTOMATIC = {"worker_lost", "trainer_killed"}
PEOPLE = {  # what a person may ask of a run in which state
    "pause": {"queued", *LIVE},
    "resume": {"paused"},
    "cancel": {"queued", "paused", *LIVE},
    "retry": {"failed", "cancelled"},
}
ENDS = [
    *(("finished", "ok"), ("failed", "trainer_killed"), ("failed", "out_of_memory")),
    *(("cancelled", "cancelled"), ("paused", "paused"), ("paused", "disk_full"), ("preempted", "drained")),
]
SEED = int(os.environ.get("COHORT_CHAOS_SEED", "0"))
"""0: always the same walk in the quick test, and one of its own each time in the long one."""
SCALE = float(os.environ.get("COHORT_CHAOS_SCALE", "1"))


@dataclass
class World:
    user: User
    nodes: list[Node]
    runs: list[int]


@dataclass
class Expected:
    """What a run must look like."""

    state: str = "queued"
    desired: str = "run"
    fence: int = 0
    owner: int | None = None
    """The attempt that may write."""
    waits: bool = False
    """For its next try."""
    retries: int = 0
    checkpoint: int = -1
    """Newest step with one."""
    anew: bool = False
    """A person wants it from the first step."""


@dataclass
class Try:
    row: Attempt
    acked: int = 0
    began: int = -1
    trains: bool = False
    end: str = ""
    outcome: bool = False
    step: int = 0
    """Its newest."""


class Lease(RuleBasedStateMachine):
    world: ClassVar[World]
    steps: ClassVar[int] = 0

    @initialize()
    def begin(self) -> None:
        self.runs = {run_id: Expected() for run_id in self.world.runs}
        self.tries: list[Try] = []
        self.last_event = RunEvent.objects.order_by("-id").values_list("id", flat=True)[0]
        self.recorded = dict.fromkeys(self.world.runs, "queued")

    def __init__(self) -> None:
        super().__init__()
        self.transaction = transaction.atomic()
        self.transaction.__enter__()

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self.transaction.__exit__(None, None, None)

    # ------------------------------------------------------------------ nodes

    @rule(which=st.integers(0, NODES - 1), hint=st.integers(0, RUNS - 1))
    def a_node_claims(self, which: int, hint: int) -> None:
        free = sum(run.owner is not None for run in self.runs.values()) < LIMIT
        due = {key for key, run in self.runs.items() if run.state == "queued" and not run.waits and free}
        on = self.world.nodes[which]
        owners = {run.owner for run in self.runs.values()}
        busy = any(tried.row.pk in owners and tried.row.node_id == on.pk for tried in self.tries)
        if busy or not due:
            self.refused(lambda: claim(on, self.world.runs[hint]), NotWaiting)
            return
        given = claimed(on, self.world.runs[hint])
        attempt = given.attempt
        assert attempt.run_id in due, "it was not waiting"
        run = self.runs[attempt.run_id]
        if run.anew:
            run.checkpoint, run.anew = -1, False
        assert max((offer.step for offer in given.resume), default=-1) == run.checkpoint
        assert attempt.fence == run.fence + 1
        run.state, run.desired, run.fence, run.owner = "starting", "run", attempt.fence, attempt.pk
        self.tries.append(Try(attempt, began=run.checkpoint, step=max(run.checkpoint, 0)))

    @precondition(lambda self: self.tries)
    @rule(which=st.integers(0, 10**6))
    def one_beats(self, which: int) -> None:
        tried, run, owns = self.pick(which)
        if owns:
            assert beat(tried.row) == (run.desired, [])
        else:
            self.refused(lambda: beat(tried.row), StaleFence)

    @precondition(lambda self: self.tries)
    @rule(which=st.integers(0, 10**6), cut=st.booleans())
    def one_writes_a_step(self, which: int, cut: bool) -> None:
        tried, run, owns = self.pick(which)
        step = tried.step + 1
        bodies: list[records.Record] = []
        if not tried.trains:
            bodies += [resumed(tried.began)] if tried.began >= 0 else []
            bodies.append(records.PhaseStarted(phase="training", total=100))
        bodies.append(records.StepMetrics(step=step, metrics={"reward": 0.5}, seconds={"total": 1.0}))
        if cut:
            bodies.append(checkpoint(step))
        if not owns:
            tried.row.acked_seq, tried.row.state = tried.acked, "running"  # as its worker believes
            self.refused(lambda: ingest(tried.row, bodies), StaleFence)
            return
        if tried.outcome:
            self.refused(lambda: ingest(tried.row, bodies), BadRecord)
            return
        ingest(tried.row, bodies)
        tried.acked += len(bodies)
        tried.step = step
        assert tried.row.acked_seq == tried.acked
        run.state, tried.trains = "training", True
        if cut:
            Checkpoint.objects.filter(attempt=tried.row, step=step).update(stored_at=Now())  # any node can have it
            run.checkpoint = step

    @precondition(lambda self: self.tries)
    @rule(which=st.integers(0, 10**6))
    def one_reports_success(self, which: int) -> None:
        tried, _, owns = self.pick(which)
        if owns and not tried.outcome:
            done = records.Outcome(status="finished", message="done", steps_done=1, steps_planned=1)
            ingest(tried.row, [done])
            tried.acked += 1
            tried.outcome = True

    @precondition(lambda self: self.tries)
    @rule(which=st.integers(0, 10**6), how=st.sampled_from(ENDS))
    def one_finishes(self, which: int, how: tuple[str, str]) -> None:
        tried, run, owns = self.pick(which)
        end, code = how
        if owns:
            finish(tried.row, end, code)
            self.ends(tried, run, end, "no_outcome" if end == "finished" and not tried.outcome else code)
        elif tried.end == end:
            self.unchanged(lambda: finish(tried.row, end, code))
        else:
            self.refused(lambda: finish(tried.row, end, code), StaleFence)

    @precondition(lambda self: self.tries)
    @rule(which=st.integers(0, 10**6))
    def a_lease_runs_out(self, which: int) -> None:
        tried, run, owns = self.pick(which)
        # Of this one alone, however slow the machine is that this runs on.
        Attempt.objects.filter(state="running").update(lease_until=Now() + timedelta(minutes=1))
        Attempt.objects.filter(pk=tried.row.pk).update(lease_until=F("claimed_at"))
        assert attempts_lost() == ([tried.row.run_id] if owns else [])
        if owns:
            self.ends(tried, run, "lost", "worker_lost")

    @precondition(lambda self: self.tries)
    @rule(which=st.integers(0, 10**6), off=st.sampled_from([0, 0, 1]))
    def a_worker_starts_again(self, which: int, off: int) -> None:
        tried, run, owns = self.pick(which)
        lost = LostAttempts(attempts=[LostAttempt(attempt_id=tried.row.pk, fence=tried.row.fence + off)])
        released = attempts_released(node=tried.row.node, lost=lost)
        assert released == ([tried.row.run_id] if owns and not off else [])
        if released:
            self.ends(tried, run, "lost", "worker_lost")

    # ------------------------------------------------------------------ people and time

    @rule(which=st.integers(0, RUNS - 1), what=st.sampled_from(sorted(PEOPLE)), anew=st.booleans())
    def a_person_asks(self, which: int, what: str, anew: bool) -> None:
        key = self.world.runs[which]
        run, row = self.runs[key], Run.objects.get(pk=key)
        service: Any = {"pause": run_pause, "resume": run_resume, "cancel": run_cancel, "retry": run_retry}[what]
        do = partial(service, run=row, actor=self.world.user)
        if what == "retry":
            do = partial(do, from_start=anew)
            waited_for_its_record(row)  # records are made elsewhere
        withdrawn = what == "resume" and run.state in LIVE and run.desired == "pause"
        too_late = what == "pause" and run.state in LIVE and run.desired == "cancel"
        if too_late or (run.state not in PEOPLE[what] and not withdrawn):
            self.refused(do, (IllegalTransition, NotPossible))
            return
        do()
        if withdrawn:
            run.desired = "run"
        elif run.state in LIVE:
            run.desired = what
        else:
            run.state = {"pause": "paused", "cancel": "cancelled"}.get(what, "queued")
            if what in ("resume", "retry"):
                run.waits, run.retries = False, 0
            if what == "retry":
                run.anew = anew

    @rule()
    def time_goes_by(self) -> None:
        Run.objects.filter(state="queued").update(not_before=None)
        for run in self.runs.values():
            run.waits = False

    @rule(which=st.integers(0, RUNS - 1))
    def a_record_is_sealed(self, which: int) -> None:
        run = self.runs[self.world.runs[which]]
        run_sealed(run=Run.objects.get(pk=self.world.runs[which]))
        if run.state == "sealing":
            run.state = "succeeded"

    # ------------------------------------------------------------------ what must be

    def ends(self, tried: Try, run: Expected, end: str, code: str) -> None:
        """The owner's attempt has ended; the run goes where the cause and people's wishes send it."""
        tried.end, run.owner = end, None
        wanted, run.desired = run.desired, "run"
        row = Run.objects.get(pk=tried.row.run_id)
        if end == "finished" and code == "ok":
            run.state = "sealing"
        elif end in ("failed", "lost", "finished"):
            if row.state == "failed":
                assert code not in AUTOMATIC or run.retries == 5 or row.barren == 3
                run.state = "failed"
            else:
                assert code in AUTOMATIC
                run.state = {"cancel": "cancelled", "pause": "paused"}.get(wanted, "queued")
                if run.state == "queued":
                    run.retries += 1
                    run.waits = run.retries > 1
                    if run.waits:  # until `time_goes_by`, however slow the machine is that this runs on
                        Run.objects.filter(pk=row.pk).update(not_before=Now() + timedelta(days=1))
            assert row.retries == run.retries <= 5
        elif end == "cancelled" or wanted == "cancel":
            run.state = "cancelled"
        elif wanted == "pause" or code == "disk_full":
            run.state = "paused"
        else:
            run.state, run.waits = "queued", False

    def pick(self, which: int) -> tuple[Try, Expected, bool]:
        """Any attempt there ever was, half of the time the newest."""
        tried = (
            self.tries[-1 - which % 4 // 2]
            if which % 2 and len(self.tries) > 1
            else self.tries[which % len(self.tries)]
        )
        run = self.runs[tried.row.run_id]
        return tried, run, run.owner == tried.row.pk

    def refused(self, do: Callable[[], Any], error: Any) -> None:
        def must() -> None:
            with pytest.raises(error):
                do()

        self.unchanged(must)

    def unchanged(self, do: Callable[[], Any]) -> None:
        before = _everything()
        do()
        assert _everything() == before, "who may not write has written"

    @invariant()
    def each_run_is_as_it_must_be(self) -> None:
        if not hasattr(self, "runs"):
            return
        type(self).steps += 1
        states = {key: rest for key, *rest in Run.objects.values_list("pk", "state", "desired", "fence")}
        must = {key: [run.state, run.desired, run.fence] for key, run in self.runs.items()}
        assert states == must
        owners = list(Attempt.objects.filter(state="running").values_list("run_id", "pk", "fence"))
        assert sorted(owners) == sorted((key, run.owner, run.fence) for key, run in self.runs.items() if run.owner)
        assert len(owners) <= LIMIT
        for event in RunEvent.objects.filter(pk__gt=self.last_event, kind="state").order_by("pk"):
            assert event.data["from"] == self.recorded[event.run_id], "a move that no event tells of"
            self.recorded[event.run_id], self.last_event = event.data["to"], event.pk
        assert self.recorded == {key: run.state for key, run in self.runs.items()}


def _everything() -> list[Any]:
    """All that a write to a run could change, but for when a node was last seen."""
    return [
        list(Run.objects.order_by("pk").values_list("pk", "state", "desired", "fence", "step", "reason", "retries")),
        list(Attempt.objects.order_by("pk").values_list("pk", "state", "acked_seq", "heartbeat_at", "end_reason")),
        RunEvent.objects.count(),
        StepMetric.objects.count(),
        Checkpoint.objects.count(),
    ]


@pytest.fixture
def world(maker: Maker) -> World:
    Project.objects.filter(pk=maker.project.pk).update(max_running=LIMIT)
    runs = [maker.run(state="queued").pk for _ in range(RUNS)]
    return World(maker.actor, [node(f"gpu-{number}") for number in range(NODES)], runs)


def walk(world: World, *, steps: int, first_seed: int) -> int:
    """At least so many steps, in walks of 100; how many it were."""
    machine: Any = type("Lease", (Lease,), {"world": world, "steps": 0})
    chosen = settings(
        max_examples=min(10, -(-steps // 100)),
        stateful_step_count=100,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    number = 0
    while machine.steps < steps:
        run_state_machine_as_test(seed(first_seed + number)(machine), settings=chosen)
        number += 1
    return int(machine.steps)


def test_no_run_has_two_owners(world: World) -> None:
    walk(world, steps=300, first_seed=SEED)


@pytest.mark.chaos
def test_no_run_has_two_owners_in_fifty_thousand_steps(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    first_seed = SEED or random.SystemRandom().randrange(2**32)
    steps = walk(world, steps=int(50_000 * SCALE), first_seed=first_seed)
    with capsys.disabled():
        print(f"\nlease machine: COHORT_CHAOS_SEED={first_seed}, {steps:,} steps, two owners 0, stale writes 0")
