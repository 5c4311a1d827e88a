"""What a run's numbers say is wrong with it, and what to do: every monitor (grpo_core.monitors.table) is evaluated
after each step about the last steps, and at the end about all of them. What they say is recorded, shown on the run's
page and printed.

A cause is reported when it begins, at the first step already, and as over once it was away for `WINDOW` steps. Loads no
torch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from grpo_core.config.run import RunConfig
from grpo_core.files.checkpoint import step_folder
from grpo_core.monitors.base import BEGAN, OVER, Evidence, Monitor
from grpo_core.monitors.history import WINDOW, StepRow
from grpo_core.monitors.ruin import Point, ruined
from grpo_core.monitors.table import ALARMS, BY_CODE, MONITORS, RUINED, title_of
from grpo_core.records.types import EvalItem, Event, Group
from grpo_core.rewards.base import MISSING
from grpo_core.text import format_percent
from grpo_core.trainer.metrics import Counts

EXAMPLES = 3


@dataclass(frozen=True)
class Finding:
    """A cause that holds."""

    monitor: Monitor
    text: str
    advice: str
    kept: int | None = None
    """Step of the checkpoint that is kept for it."""

    @property
    def code(self) -> str:
        return self.monitor.code

    def __str__(self) -> str:
        return f"{self.text} {self.advice}"


def findings(evidence: Evidence) -> list[Finding]:
    """Every cause that holds, in order."""
    texts = ((monitor, monitor.says(evidence)) for monitor in MONITORS)
    return [Finding(monitor, text, monitor.advice(evidence.config)) for monitor, text in texts if text]


@dataclass(eq=False)
class Diagnosis:
    """Follows one run from step to step."""

    config: RunConfig
    ends: str
    """The end tokens, for people."""
    counts: Counts
    """The trainer's own, which hold the step before they are asked about, and what a checkpoint carries on: the steps
    so far, and when each cause was last seen."""
    _: KW_ONLY
    keep: Callable[[int], int | None]
    """Keep the newest checkpoint of at most this step; returns its step, None where there is none."""

    def step(self, step: int, groups: Sequence[Group], metrics: Mapping[str, float]) -> Iterator[tuple[Event, str]]:
        """What begins and what is over with this step: the event, and examples for the terminal."""
        held = self._held(step, groups, metrics) if groups else []
        for finding in held:
            last, self.counts.held[finding.code] = self.counts.held.get(finding.code), step
            if last is None or step - last > WINDOW:
                yield self._began(finding, step), _seen(groups, self.config) if finding.code == "no_answer" else ""
        for code, last in self.counts.held.items():
            if step - last == WINDOW and not (code in BY_CODE and BY_CODE[code].lasting):
                data = {"cause": code, "step": step, "last": last}
                yield Event(type=OVER, message=f"step {step}: no longer so: {title_of(code)}.", data=data), ""

    def heldout(self, before: Sequence[EvalItem], after: Sequence[EvalItem]) -> Event | None:
        """That the last update ruined the policy, which no step shows: by the answers to the held-out problems before
        and after training, compared with what the last steps had right. None where it did not."""
        step = self.counts.steps
        first, newest = Point.of_answers(0, before), Point.of_answers(step, after)
        steps = [Point.of(row) for row in self.counts.history.window]
        ruin = ruined(newest, steps, self.config) if ruined(newest, [first], self.config) is not None else None
        if ruin is None or RUINED in self.counts.held:
            return None
        good = self.keep(ruin.step - 1)
        shares = f"{format_percent(first.share_right)} were right before training, {format_percent(newest.share_right)}"
        text = f"{ruin.text} The held-out problems show it: {shares} are now."
        self.counts.held[RUINED] = step
        return self._began(Finding(BY_CODE[RUINED], text, ruin.advice(good), good), step)

    def _began(self, finding: Finding, step: int) -> Event:
        return Event(type=BEGAN, message=f"step {step}: {finding}", data=self._data(finding, step))

    def _held(self, step: int, groups: Sequence[Group], metrics: Mapping[str, float]) -> list[Finding]:
        """What holds at this step, which is added to the history."""
        counts = self.counts
        sampled_at = min(group.sampled_at or step for group in groups)
        row = StepRow(
            step=step,
            sampled_at=sampled_at if sampled_at != step else None,
            metrics=dict(metrics),
            sums=dict(counts.newest),
        )
        since = counts.held.get(RUINED, 0)  # what comes after a ruinous update is compared with what is left
        earlier = [Point.of(own) for own in counts.history.window if own.step >= since]
        counts.history = counts.history.add(row)
        errors = (c.error for group in groups for sample in group.samples for c in sample.components.values())
        error = next((error for error in errors if error is not None), "")
        history = counts.history
        held = findings(Evidence(history.sums(), self.config, self.ends, metrics, error, history))
        if (ruin := ruined(Point.of(row), earlier, self.config)) is not None:
            good = self.keep(ruin.step - 1)
            held.append(Finding(BY_CODE[RUINED], ruin.text, ruin.advice(good), good))
        return held

    def _data(self, finding: Finding, step: int) -> dict[str, Any]:
        data: dict[str, Any] = {"cause": finding.code, "step": step, "text": finding.text, "advice": finding.advice}
        data |= {"metrics": list(finding.monitor.drawn(self.config))}
        return data | ({"kept": finding.kept} if finding.kept is not None else {})

    def last_words(self, good: int | None = None) -> str:
        """The outcome of a finished run: how many groups carried a signal, each cause that held over all of it, and
        what was suspected to the end. `good`: step of the checkpoint from before a ruinous update."""
        counts, sums = self.counts, self.counts.sums
        carried = self.config.algorithm.carried(sums)
        steps = f"{counts.steps:,} step{'' if counts.steps == 1 else 's'}"
        groups = f"{sums['groups']:,} group{'' if sums['groups'] == 1 else 's'}"
        text = f"Finished {steps}; {carried:,} of {groups} carried a signal."
        if carried == 0 and counts.informative == 0:
            text = f"No group carried a signal in {steps} ({groups}): the policy was not changed by rewards."
        more = [str(finding) for finding in findings(Evidence(sums, self.config, self.ends))]
        if RUINED in counts.held:
            kept = f"; {step_folder(good)} is the last checkpoint from before it" if good is not None else ""
            more.append(f"The policy was ruined, as was reported at step {counts.held[RUINED]}{kept}.")
        current = [code for code, last in counts.held.items() if code in ALARMS and counts.steps - last < WINDOW]
        if suspected := [title_of(code) for code in current if code != RUINED]:
            more.append(f"Suspected at the end: {'; '.join(suspected)} (docs/monitors.md).")
        return " ".join([text, *more])


def _seen(groups: Sequence[Group], config: RunConfig) -> str:
    """What the verifier saw: the ends of three completions, where an answer is looked for. Printed only; the record has
    completions with their groups, where they can be redacted."""
    success = config.reward.success_of
    texts = [
        sample.completion[-120:]
        for group in groups
        for sample in group.samples
        if sample.components[success(sample.components)].detail in MISSING.values()
    ]
    return "\n".join(f"  it saw: …{text!r}" for text in texts[:EXAMPLES])
