"""Scores stored samples again with the verifier that scored them, and compares every reward with the stored one.

A component that asks a server or needs weights is not run: its stored scores are used, and the result names it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from grpo_core.config.reward import RewardConfig
from grpo_core.config.run import RunConfig
from grpo_core.data.problem import Problem
from grpo_core.errors import RecordsError
from grpo_core.files.recorded_run import RecordedGroup
from grpo_core.lab.rescore import unfailing
from grpo_core.records.types import ComponentScore, Sample
from grpo_core.rewards import Rubric, Runner, Scored, ScoreRequest
from grpo_core.rewards.base import Context
from grpo_core.rewards.registry import KINDS
from grpo_core.rewards.signal import OVERLONG, with_overlong
from grpo_core.text import printable

NEEDS = {"judge": "needs the judge's server", "model": "needs the weights of its model"}
"""Mode of a kind that is not run again → why."""
LISTED = 10


@dataclass(frozen=True)
class RewardMismatch:
    """A reward, or a component's score, that is not the stored one."""

    step: int
    group: int
    sample: int
    what: str
    recorded: float | None
    again: float | None
    detail: str

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        position = f"step {self.step}, group {self.group}, sample {self.sample}"
        return f"{position}, {self.what}: recorded {self.recorded}, now {self.again}{detail}"


@dataclass
class RewardCheck:
    """The result."""

    samples: int = 0
    equal: int = 0
    differing: int = 0
    unscored: int = 0
    """Without a stored reward: nothing to compare."""
    failed: Counter[str] = field(default_factory=Counter)
    """Stored rewards that could not be made again, by why."""
    deleted: int = 0
    """Samples whose text was deleted since."""
    not_kept: int | None = None
    """Committed to and never kept; None where the records hold no commitments."""
    not_run: dict[str, str] = field(default_factory=dict)
    """Components that were not run → why. Their stored scores are used."""
    mismatches: list[RewardMismatch] = field(default_factory=list)

    @property
    def verdict(self) -> Literal["equal", "differs", "cannot say"]:
        if self.differing:
            return "differs"
        return "cannot say" if self.failed or not self.equal else "equal"

    @property
    def exit_status(self) -> int:
        return {"equal": 0, "differs": 1, "cannot say": 2}[self.verdict]

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, "exit_status": self.exit_status, **asdict(self), "failed": dict(self.failed)}

    def text(self, *, shown_as: str) -> str:
        return "\n".join(map(printable, self._lines(shown_as)))

    def _lines(self, shown_as: str) -> Iterator[str]:
        but = f", but for {', '.join(self.not_run)}, which cannot be run again here" if self.not_run else ""
        match self.verdict:
            case "equal":
                yield f"equal: the run's own verifier gives {self.equal:,} stored rewards again{but}"
            case "differs":
                yield f"differs: {self.differing:,} of {self.samples:,} rewards; the first: {self.mismatches[0]}"
            case "cannot say":
                yield f"cannot say: {sum(self.failed.values()) or self.samples:,} rewards could not be made again{but}"
        yield f"records   {shown_as}"
        kept = "" if self.not_kept is None else f"; {self.not_kept:,} completions never kept"
        yield (
            f"samples   {self.samples:,}: {self.equal:,} equal, {self.differing:,} differ, {self.unscored:,} without a "
            f"stored reward; {self.deleted:,} deleted since{kept}"
        )
        yield from (f"not run   {name}: {why}; its stored scores were used" for name, why in self.not_run.items())
        yield from (f"failed    {count:,}: {why}" for why, count in self.failed.most_common())
        yield from (f"DIFFERS   {mismatch}" for mismatch in self.mismatches[:LISTED])
        if (more := len(self.mismatches) - LISTED) > 0:
            yield f"          and {more:,} more; --json lists all"
        yield "not proven: that the verifier pays what it should, or anything about completions that were not kept"


def runnable(reward: RewardConfig) -> tuple[Rubric, dict[str, str]]:
    """The components that can be run here, and why not of the others. Raises RecordsError where there are none."""
    not_run = {own.name: NEEDS[KINDS[own.kind].mode] for own in reward.components if KINDS[own.kind].mode in NEEDS}
    left = [own for own in reward.components if own.name not in not_run]
    if not left:
        listed = "; ".join(f"{name} {why}" for name, why in not_run.items())
        raise RecordsError(f"no component of the reward can be run again here: {listed}")
    success = reward.success if reward.success not in not_run else None
    settings = {"components": left, "success": success, "on_error": reward.on_error, "limits": reward.limits}
    if all(own.weight == 0 for own in left):
        settings["components"] = [own.model_copy(update={"weight": 1.0}) for own in left]
    return unfailing(Rubric(RewardConfig.model_validate(settings))), not_run


class RewardChecker:
    """Scores groups, one step after another. Holds the verifier open until it is closed."""

    def __init__(
        self, config: RunConfig, problems: Mapping[str, Problem], context: Context, check: Callable[[], None]
    ) -> None:
        """Raises RecordsError, and a GrpoError where something that the verifier needs is missing."""
        rubric, not_run = runnable(config.reward)
        self._config, self._problems, self._check = config, problems, check
        self._whole = unfailing(Rubric(config.reward))
        self._runner = Runner(rubric, context)
        self.result = RewardCheck(not_run=not_run)

    def close(self) -> None:
        self._runner.close()

    def add(self, recorded: Sequence[RecordedGroup]) -> None:
        """All together, so that a kind that scores in parallel has enough to do."""
        result, prefill = self.result, self._config.data.prefill
        pairs = [(own.group, sample) for own in recorded for sample in own.group.samples]
        result.deleted += sum(own.redacted for own in recorded)
        result.samples += len(pairs)
        known = [(group, sample) for group, sample in pairs if group.problem_id in self._problems]
        for group, sample in pairs:
            if group.problem_id not in self._problems and sample.reward is not None:
                result.failed["its problem is not here"] += 1
        requests = [
            ScoreRequest(self._problems[group.problem_id], sample.completion, sample.tokens, prefill)
            for group, sample in known
        ]
        for (group, sample), score in zip(known, self._runner.score(requests, check=self._check), strict=True):
            self._compare((group.step, group.index, sample.index), sample, self._with_stored(score, sample))

    def _with_stored(self, score: Scored, sample: Sample) -> Scored:
        """With the stored scores of the components that were not run."""
        stored = {name: own for name, own in sample.components.items() if name in self.result.not_run}
        parts: dict[str, ComponentScore] = {**score.components, **stored}
        whole = self._whole.combine(parts, of="") if parts.keys() != score.components.keys() else score
        longest = self._config.sampling.max_completion_tokens
        return with_overlong(whole, sample.tokens, self._config.algorithm, longest=longest)

    def _compare(self, position: tuple[int, int, int], sample: Sample, score: Scored) -> None:
        result = self.result
        if sample.reward is None:
            result.unscored += 1
            return
        if score.reward is None:
            errors = (own.error for own in score.components.values() if own.error is not None)
            result.failed[next(errors, "no score")[:200]] += 1
            return
        mismatches = [
            RewardMismatch(*position, f"component {name}", own.value, again.value, again.detail)
            for name, own in sample.components.items()
            if name not in result.not_run
            and name != OVERLONG
            and (again := score.components.get(name)) is not None
            and again.value != own.value
        ]
        if sample.reward != score.reward:
            mismatches.insert(0, RewardMismatch(*position, "reward", sample.reward, score.reward, ""))
        if mismatches:
            result.differing += 1
            result.mismatches += mismatches
        else:
            result.equal += 1
