"""The header above every tab of a run: what it is, progress, node, last heartbeat, why it waits or is paused."""

from datetime import datetime, timedelta
from functools import cached_property
from operator import attrgetter
from typing import Any

from django.conf import settings
from django.utils import timezone

from cohort.base.formatting import exact
from cohort.ingest.run_state import IN_STEPS, PHASE_WORDS
from cohort.lab.judged import TrainingRewardJudge, training_reward_judge
from cohort.nodes.models import Draining
from cohort.records.after_seal.rules import Standing
from cohort.runs.checkpoints import resumable
from cohort.runs.models import Attempt, Checkpoint, Desired, Run, RunDataset, RunEvent, RunKind, RunState
from cohort.runs.retry import DELAYS
from cohort.runs.trained_rewards import final_weights
from cohort.runs.transitions import ENDED, ON_A_WORKER, SEALED_WITHIN, record_overdue
from cohort.runs.waiting import waiting_rows
from cohort.web.after_seal.timeline import standings
from cohort.web.context import LIVE, version_of
from cohort.web.launch.variants import variant_in_words
from cohort.web.records.listing import record_of
from cohort.web.runs.kind_facts import facts_of
from grpo_core.config.kinds import AnyConfig
from grpo_core.config.preset_differences import Difference, diff
from grpo_core.config.presets import PRESETS, Preset
from grpo_core.config.relevance import idle
from grpo_core.config.run import RunConfig

QUIET_AFTER = 3 * timedelta(seconds=settings.COHORT_HEARTBEAT_SECONDS)
"""Three missed heartbeats of an attempt: shown as a notice, before its lease runs out."""
HEARTBEAT_REFRESH = settings.COHORT_HEARTBEAT_SECONDS
"""Heartbeats within so many seconds refresh a page once: what it shows never looks like missed heartbeats."""
_VERSIONED = (
    *("run", "fence", "state", "claimed_at", "heartbeat_at", "progress_at", "progress", "acked_seq", "resumed_step"),
    *("ended_at", "node__draining"),
)
"""What `Header.version` is made of, of an attempt."""
RESUMABLE = (RunState.PAUSED, RunState.QUEUED)
"""States of a run that no worker has and that may resume from a checkpoint."""


class Header:
    tries = len(DELAYS)
    """Most times that the platform puts a run back by itself."""

    def __init__(self, run: Run, *, polled: bool = False) -> None:
        """Two queries for a run on a worker; up to eight for one that waits. `polled`: for `version` alone, for which
        the columns of `access.polled_run_for` suffice."""
        self.run = run
        attempts = Attempt.objects.filter(run=run).select_related("node")
        attempts = attempts.only(*_VERSIONED) if polled else attempts.defer("manifest", "outcome", "node__info")
        self.attempt = attempt = attempts.order_by("-fence").first()
        self.record = record_of(run)
        self.waits = next(iter(waiting_rows(only=run)), None) if run.state == RunState.QUEUED else None
        """Position in the queue and what it waits for; None unless it still waits."""
        resumes = run.state in RESUMABLE and attempt is not None
        self.newest = (run.resume_from or resumable(run).first()) if resumes else None
        """What it would resume from; looked up only while no worker has it and it is to continue."""
        pauses = RunEvent.objects.filter(run=run, kind="state", data__to=RunState.PAUSED).order_by("-id")
        self.moved = pauses.first() if run.state == RunState.PAUSED else None
        """Who paused it, and when; None unless it is paused."""
        self.now = timezone.now()
        self.heartbeat_at = (attempt.heartbeat_at or attempt.claimed_at) if attempt else None
        self.silence = self._since(self.heartbeat_at)
        self.moved_at = (attempt.progress_at or attempt.claimed_at) if attempt else None
        """When a record or a unit of work last arrived."""
        self.stillness = self._since(self.moved_at)
        self.waited = self._since(run.queued_at)
        self.unanswered_for = self._since(attempt.ended_at) if attempt else None
        """How long ago the record was first requested."""
        self.took = (run.ended_at or self.now) - run.started_at if run.started_at else None
        """From its first start to its end, waits between attempts too."""
        later = run.not_before is not None and run.not_before > self.now
        self.due = run.not_before if self.waiting and later else None
        """When a run that is tried again may be taken; None when it may be now."""
        self.until_due = self.due - self.now if self.due else None

    # What the version does not need is worked out only for a page that shows it: most polls end at the version.

    @cached_property
    def judge(self) -> TrainingRewardJudge | None:
        """Of held-out problems, where that is the training reward."""
        return training_reward_judge(self.run)

    @property
    def config(self) -> AnyConfig:
        return self.run.parsed_config

    @property
    def preset(self) -> Preset | None:
        return PRESETS.get(self.run.preset)

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """From the preset."""
        config = self.config
        return tuple(diff(config)) if isinstance(config, RunConfig) and config.preset in PRESETS else ()

    @property
    def facts(self) -> tuple[str, ...]:
        """What most decides a run of another kind than GRPO."""
        return facts_of(self.config)

    @property
    def data_word(self) -> str:
        return "conversations" if self.run.kind in (RunKind.SFT, RunKind.DISTILL) else "preferences"

    @cached_property
    def further(self) -> list[RunDataset]:
        """Datasets that it reads besides the first."""
        return list(self.run.run_datasets.select_related("dataset"))

    @cached_property
    def reward_weights(self) -> Checkpoint | None:
        """Final weights that a reward can be made of, of a run that has ended well."""
        return final_weights(self.run) if self.run.state == RunState.SUCCEEDED else None

    @cached_property
    def variant(self) -> str:
        return variant_in_words(self.config.algorithm)

    @cached_property
    def standing(self) -> Standing | None:
        """Status of the record's sign-off."""
        return standings([self.record.pk])[self.record.pk] if self.record is not None else None

    def _since(self, when: datetime | None) -> timedelta | None:
        return self.now - when if when else None

    @property
    def version(self) -> str:
        """Changes when anything that the live parts show has changed; what counts up by itself is left to the page."""
        run, attempt = self.run, self.attempt
        parts: list[Any] = [
            *(run.state, run.phase, run.step, run.steps_total, run.reason, run.error_code, run.ended_at),
            *(run.priority, run.retries, run.not_before, run.stalled_at, run.queued_at),
            *(run.desired, self.may_give_up, self.record and self.record.pk, self.newest and self.newest.pk),
        ]
        if self.waits is not None:
            parts += [self.waits.position, self.waits.why]
        if attempt is not None and self.heartbeat_at is not None:
            # With the heartbeat itself, each poll would redraw the page.
            bucket = self.heartbeat_at.timestamp() // HEARTBEAT_REFRESH
            parts += [attempt.pk, attempt.state, attempt.acked_seq, bucket, self.silent]
            parts += [attempt.resumed_step, attempt.progress, attempt.node.draining]
        return version_of(parts)

    @property
    def clip(self) -> str:
        """Where the ratio is clipped: "ε 0.2 / 0.28"; the loss's name where it is not PPO's clip."""
        algorithm = self.config.algorithm
        loss, high = algorithm.loss, exact(algorithm.clip_high)
        name = loss.replace("_", " ")
        if self._idle("algorithm.clip_low"):
            return name if self._idle("algorithm.clip_high") else f"{name}, weight at most {high}"
        bounds = f"ε {exact(algorithm.clip_low)} / {high}"
        return bounds if loss == "clip" else f"{name} {bounds}"

    def _idle(self, path: str) -> bool:
        return idle(path, lambda other: attrgetter(other)(self.config)) is not None

    @property
    def live(self) -> bool:
        return self.run.state in LIVE or self.run.state == RunState.PAUSED

    @property
    def polls(self) -> bool:
        """Whether the page should ask again: the run lives, or its record is still to come."""
        if not self.may_retry:
            return self.live
        ended = self._since(self.run.ended_at)
        return self.attempt is not None and self.record is None and ended is not None and ended < SEALED_WITHIN

    # ------------------------------------------------------------------ actions on it

    @property
    def waiting(self) -> bool:
        return self.run.state == RunState.QUEUED

    @property
    def on_worker(self) -> bool:
        return self.run.state in ON_A_WORKER and self.attempt is not None

    @property
    def cancelling(self) -> bool:
        return self.run.desired == Desired.CANCEL and self.run.state in ON_A_WORKER

    @property
    def pausing(self) -> bool:
        return self.run.desired == Desired.PAUSE and self.run.state in ON_A_WORKER

    @property
    def moving_on(self) -> bool:
        """Its node is being emptied: it stops there at a checkpoint and resumes elsewhere."""
        return self.on_worker and self.attempt is not None and self.attempt.node.draining == Draining.MOVE

    @property
    def unscored(self) -> float:
        """Share of the newest step's completions that could not be scored."""
        return float(self.run.latest_metrics.get("frac_unscored", 0.0))

    @property
    def stalled(self) -> bool:
        return self.on_worker and self.run.stalled_at is not None

    @property
    def may_cancel(self) -> bool:
        states = (*ON_A_WORKER, RunState.QUEUED, RunState.PAUSED, RunState.DRAFT)
        return self.run.state in states and not self.cancelling

    @property
    def may_give_up(self) -> bool:
        """Trained, and its record could not be made, or was requested and has not arrived."""
        ended_at = self.attempt.ended_at if self.attempt else None
        return record_overdue(self.run, ended_at=ended_at, now=self.now)

    @property
    def may_pause(self) -> bool:
        return self.waiting or (self.run.state in ON_A_WORKER and self.run.desired == Desired.RUN)

    @property
    def may_resume(self) -> bool:
        """Paused, or being paused."""
        return self.run.state == RunState.PAUSED or self.pausing

    @property
    def may_retry(self) -> bool:
        return self.run.state in (RunState.FAILED, RunState.CANCELLED)

    @property
    def may_extend(self) -> bool:
        if self.run.kind == RunKind.SAMPLE:  # each problem once
            return False
        return self.run.state in (*ENDED, RunState.PAUSED) and self.attempt is not None

    # ------------------------------------------------------------------ how far, where, since when

    @property
    def again(self) -> bool:
        """Waits, and a worker has had it before."""
        return self.waiting and self.attempt is not None

    @property
    def resumes_at(self) -> str:
        """Where the next attempt resumes from: "from step 40"."""
        if self.newest is None or self.run.from_start:
            return "at its first step"
        if self.newest.step == 0:
            return "at its first step, with the evaluation before training that it has"
        return f"from step {self.newest.step:,}"

    @property
    def seam(self) -> str:
        """Changes when an attempt resumes from a checkpoint, so that charts know to draw that."""
        return f"{self.attempt.fence}:{self.attempt.resumed_step}" if self.attempt else ""

    @property
    def resumed(self) -> str:
        """Where this attempt resumed from; empty for one that began at the beginning."""
        step = self.attempt.resumed_step if self.attempt else None
        return "" if step is None else f"from step {step:,}" if step else "from before step 1"

    @property
    def silent(self) -> bool:
        """A worker should be beating and has not for a while."""
        return self.on_worker and self.silence is not None and self.silence > QUIET_AFTER

    @property
    def doing(self) -> str:
        """ "evaluating before training, 130 of 512"."""
        if self.run.state == RunState.SEALING:
            unanswered = self.may_give_up and not self.run.reason
            record = "its record was requested and has not arrived" if unanswered else "the record is being made"
            return f"trained; {record}"
        text = PHASE_WORDS.get(self.run.phase, "starting")
        inside = self.attempt.progress if self.attempt else {}
        if inside.get("phase") == self.run.phase not in IN_STEPS and inside.get("total"):
            text += f", {inside['done']:,} of {inside['total']:,}"
        return text

    @property
    def seconds_left(self) -> float | None:
        """Of training; what comes after it is not counted."""
        if self.run.state != RunState.TRAINING or self.run.seconds_per_step is None or self.stalled:
            return None
        return self.run.seconds_per_step * max(0, self.run.steps_total - self.run.step)

    def context(self, tab: str, **more: Any) -> dict[str, Any]:
        """What the template of a page of the run needs: the run, which of its tabs this is, and `more`."""
        return {"run": self.run, "header": self, "tab": tab, **more}
