"""Writes a run's records to disk and shows its lines.

Only the first rank has a run directory; on the others everything here does nothing but keep the line of progress.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grpo_core.config.kinds import AnyConfig, ScoredConfig
from grpo_core.distributed.ranks import Ranks
from grpo_core.files.run_folder import RunDir
from grpo_core.records.commitments import commit
from grpo_core.records.types import Commitments, Event, Group, Outcome, PhaseStarted, Record
from grpo_core.rewards.flags import flagged
from grpo_core.runtime.energy import Meter
from grpo_core.runtime.progress import Progress
from grpo_core.runtime.watchdog import Watchdog, at
from grpo_core.trainer.metrics import ENERGY, Counts


@dataclass(eq=False)
class RunRecorder:
    """One run's records and lines."""

    run_dir: RunDir | None
    progress: Progress
    counts: Counts
    """The trainer's own."""
    meter: Meter | None = None
    """Measures energy; None where the machine has no meter, or what was done before was not measured."""

    def write(self, record: Record) -> None:
        if self.run_dir is not None:
            self.run_dir.append(record)

    def warn(self, message: str) -> None:
        self.write(Event(type="warning", message=message))
        self.progress.line(f"warning: {message}")

    def event(self, event: Event, more: str = "") -> None:
        """Record it and show it, with `more` lines that are only shown."""
        self.write(event)
        self.progress.line(f"{event.message}\n{more}".rstrip())

    def stalled(self, message: str, data: dict[str, Any]) -> None:
        """A warning of the watchdog, durable at once: nothing else may come for long."""
        self.progress.line(message)
        self.write(Event(type="waiting", message=message, data=data))
        self.commit()

    def commit(self) -> None:
        """Make durable what was written."""
        if self.run_dir is not None:
            self.run_dir.commit()

    def phase(self, phase: str, total: int | None = None) -> None:
        """A new part of the run begins, of `total` pieces."""
        in_steps = phase in ("training", "sampling")
        at(phase.replace("_", " ") if not in_steps else "", phase.replace("_", " "))
        self.write(PhaseStarted.model_validate({"phase": phase, "total": total}))
        self.commit()
        unit = "step" if in_steps else None
        self.progress.begin(phase, total or 0, unit=unit, done=self.counts.steps if unit else 0)
        if not in_steps:
            self.progress.line(phase.replace("_", " "))

    def count_energy(self) -> None:
        """Add what was used since the last time to the run's sum."""
        if self.meter is None:
            return
        try:
            self.counts.sums[ENERGY] += self.meter.take()
        except OSError as error:  # a run does not end for want of a meter, and a part is not the sum
            self.meter = None
            self.counts.sums.pop(ENERGY, None)
            self.write(Event(type="warning", message=f"energy is no longer measured: {error}"))

    def end(self, outcome: Outcome) -> None:
        """The last record."""
        if self.run_dir is not None:
            self.run_dir.append(outcome)
            self.run_dir.close()


def watchdog(config: AnyConfig, recorder: RunRecorder, ranks: Ranks) -> Watchdog:
    """Of this rank; the first one's message is recorded, the others' are printed, where torchrun's log has them."""
    seconds, status = config.engine.watchdog_seconds, ranks.status()
    if ranks.main:
        return Watchdog(seconds, warn=recorder.stalled, log=recorder.progress.log_only, status=status)

    name = ranks.name(ranks.rank)

    def say(text: str, data: object = None) -> None:
        print(f"{name}: {text}", file=sys.stderr, flush=True)

    return Watchdog(seconds, warn=say, log=say, status=status)


_TRACES, TOKENS = 3, 5  # names of random streams; the others' are in sampling.py and evaluate/task.py


def traces(
    step: int, trained: Sequence[Group], discarded: Sequence[Group], over: Sequence[Group], config: ScoredConfig
) -> list[Commitments | Group]:
    """The step's commitments, then the groups that are kept, in order. Nothing when nothing was sampled.

    Groups are numbered through: those trained on, those that dynamic sampling discarded, those left `over` for a later
    step. Those discarded are sampled apart, so that the same groups are kept whether any were discarded or not. Those
    left over are kept, if at all, by the step that trains on them. What is kept carries its flags.
    """
    groups = [*trained, *discarded, *over]
    if not groups:
        return []
    salted, commitments = commit(groups)
    kept: list[Commitments | Group] = [commitments]
    ends = len(trained), len(trained) + len(discarded)
    for part, stream in ((salted[: ends[0]], ()), (salted[ends[0] : ends[1]], (1,))):
        indices = kept_groups(len(part), config.traces.groups_per_step, config.seed, step, *stream)
        kept += [flagged(part[index], config.reward) for index in indices]
    return kept


def kept_groups(count: int, keep: int, seed: int, step: int, *stream: int) -> list[int]:
    """Which of a step's groups are kept with their texts: sampled by seed, in order."""
    if keep >= count:
        return list(range(count))
    return sorted(np.random.default_rng([seed, _TRACES, step, *stream]).choice(count, keep, replace=False).tolist())
