"""A step that was done again against what was recorded of it: samples, rewards, metrics, weights."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from grpo_core.errors import RecordsError
from grpo_core.files.recorded_run import RecordedGroup, RecordedRun
from grpo_core.records.commitments import sample_content
from grpo_core.records.leaves import leaf
from grpo_core.records.types import INFRASTRUCTURE_ERRORS, Group, Sample
from grpo_core.replay.bounds import Bounds

OF_THE_MACHINE = ("samples_per_second", "tokens_per_second", "memory", "device_utilisation", "vllm")
"""First words of metrics that say how fast or where a step was done."""
_EVALUATED = "eval"
"""First word of metrics of evaluations while training, which are not made again."""
Kind = Literal["sample", "value", "reward", "commitment", "metric", "weights"]


@dataclass(frozen=True)
class ReplayedStep:
    """What doing a step again gave."""

    step: int
    metrics: Mapping[str, float]
    groups: Sequence[Group]
    """All of the step, in the order of their index."""
    weights: Mapping[str, str]
    """SHA-256 of each part of the training after it, as a checkpoint's files; empty where none was recorded."""


@dataclass(frozen=True)
class Mismatch:
    """A value that is not what was recorded."""

    step: int
    kind: Kind
    where: str
    """Such as group 3, sample 1: reward; loss; policy."""
    recorded: str
    again: str
    by: float | None = None
    """Of numbers, how much more it is now."""
    within: bool = False
    """By the bounds that hold where the machine is another."""

    def __str__(self) -> str:
        change = "" if self.by is None else f", {self.by:+.3g}"
        return f"step {self.step}, {self.where}: recorded {self.recorded}, now {self.again}{change}"


@dataclass
class StepComparison:
    """Of one step."""

    step: int
    wanted: bool
    """Named or drawn; else done on the way to one that is."""
    samples: int = 0
    """Completions compared word for word, with reward and advantage."""
    committed: int = 0
    """Of them, those whose salted hash was made again and is the one that the run committed to."""
    deleted: int = 0
    """Whose text was deleted since."""
    not_kept: int = 0
    """Sampled, and never kept: only the step's metrics depend on them."""
    metrics: int = 0
    not_compared: list[str] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    """Parts whose digest was compared."""
    mismatches: list[Mismatch] = field(default_factory=list)

    @property
    def outcome(self) -> Literal["equal", "within", "differs"]:
        if not self.mismatches:
            return "equal"
        return "within" if all(mismatch.within for mismatch in self.mismatches) else "differs"


def compare_step(
    run: RecordedRun,
    kept: Sequence[RecordedGroup],
    again: ReplayedStep,
    *,
    bounds: Bounds | None,
    wanted: bool,
) -> StepComparison:
    """`kept`: the step's groups as recorded. `bounds`: None where every number must be equal to the bit. Raises
    RecordsError where a reward was not scored for a cause that says nothing of the completion."""
    _require_scored(again.step, again.groups, "now")
    _require_scored(again.step, [own.group for own in kept], "in the run")
    result = StepComparison(again.step, wanted)
    _compare_samples(run, kept, again, result, bounds)
    others = {mismatch.where for mismatch in result.mismatches if mismatch.kind == "sample"}
    _compare_metrics(run.steps.get(again.step), again, result, bounds, same_completions=not others)
    recorded = run.checkpoints.get(again.step)
    if recorded is not None:
        for part, digest in recorded.tensors.items():
            if part in again.weights:
                result.weights.append(part)
                if again.weights[part] != digest:
                    where = f"weights after the step ({part})"
                    # A digest says that bits differ, and they do where a sum is rounded otherwise.
                    result.mismatches.append(
                        Mismatch(again.step, "weights", where, digest, again.weights[part], within=bounds is not None)
                    )
    return result


def _require_scored(step: int, groups: Iterable[Group], when: str) -> None:
    for group in groups:
        for sample in group.samples:
            for name, score in sample.components.items():
                if score.error_class in INFRASTRUCTURE_ERRORS:
                    raise RecordsError(
                        f"step {step}, group {group.index}, sample {sample.index}: reward component {name} could not "
                        f"be scored {when}: {score.error}. So the step's rewards are not the run's, and nothing can be "
                        "said of them; steps before it can be compared. Of a judge, the run's own folder (--run DIR) "
                        "holds the answers"
                    )


# ---------------------------------------------------------------------- samples

_NOT_BOUND = "mean log-probability"
"""A sample's value that its commitment does not bind; scores of components are bound by the reward alone."""


def _compare_samples(
    run: RecordedRun,
    kept: Sequence[RecordedGroup],
    again: ReplayedStep,
    result: StepComparison,
    bounds: Bounds | None,
) -> None:
    groups = {group.index: group for group in again.groups}
    leaves = run.leaves.get(again.step)
    result.not_kept = sum(len(group.samples) for group in again.groups)
    differing: list[Mismatch] = []
    for recorded in kept:
        result.deleted += recorded.redacted
        group = groups.get(recorded.group.index)
        samples = {sample.index: sample for sample in group.samples} if group is not None else {}
        result.not_kept -= recorded.redacted
        for sample in recorded.group.samples:
            where = f"group {recorded.group.index}, sample {sample.index}"
            result.samples += 1
            own = samples.get(sample.index)
            if group is None or own is None:
                differing.append(Mismatch(again.step, "sample", where, "a completion", "none"))
                continue
            result.not_kept -= 1
            texts, numbers = _sample_mismatches(again.step, where, recorded.group, sample, group, own, bounds)
            differing += texts
            result.mismatches += numbers
            bound = [mismatch for mismatch in numbers if not mismatch.where.endswith(_NOT_BOUND)]
            if texts or bound or leaves is None or sample.salt is None:
                continue
            position = recorded.group.index * len(group.samples) + sample.index
            result.mismatches += _commitment(again.step, where, position, leaves, sample, group, own)
            result.committed += 1
    share = len(differing) / result.samples if result.samples else 0.0
    allowed = bounds is not None and share <= bounds.completions
    result.mismatches[:0] = [
        Mismatch(m.step, m.kind, m.where, m.recorded, m.again, m.by, within=allowed) for m in differing
    ]


def _sample_mismatches(
    step: int, where: str, group: Group, sample: Sample, own_group: Group, own: Sample, bounds: Bounds | None
) -> tuple[list[Mismatch], list[Mismatch]]:
    """(That the completion is another, what else is of the same completion.)"""
    then, now = sample_content(group, sample), sample_content(own_group, own)
    for name in ("problem_id", "prompt", "completion", "tokens", "finish_reason"):
        if then[name] != now[name]:
            before, after = _first_difference(then[name], now[name])
            return [Mismatch(step, "sample", f"{where}: {name.replace('_', ' ')}", before, after)], []
    numbers: list[tuple[Kind, str, float | None, float | None]] = [
        ("reward", "reward", sample.reward, own.reward),
        *(
            ("reward", f"reward component {name}", _value(sample, name), _value(own, name))
            for name in sorted({*sample.components, *own.components})
        ),
        ("value", "advantage", sample.advantage, own.advantage),
        ("value", "mean log-probability", sample.logprob_mean, own.logprob_mean),
    ]
    mismatches = []
    for kind, what, recorded, made in numbers:
        if recorded == made:
            continue
        by = made - recorded if recorded is not None and made is not None else None
        # A verifier that gives another reward for the same text is another verifier: no bound holds for it.
        most = bounds.logprob if bounds is not None and kind == "value" else -1.0
        near = by is not None and abs(by) <= most
        mismatches.append(Mismatch(step, kind, f"{where}: {what}", _shown(recorded), _shown(made), by, within=near))
    return [], mismatches


def _commitment(
    step: int, where: str, position: int, leaves: Sequence[bytes], sample: Sample, group: Group, own: Sample
) -> Iterator[Mismatch]:
    """The salted hash of what was sampled now, under the recorded salt, against the run's commitment. The digest of
    token arrays is the recorded one: those are not made again."""
    content = sample_content(group, own.model_copy(update={"tokens_sha256": sample.tokens_sha256}))
    made = leaf(bytes.fromhex(sample.salt or ""), content)
    committed = leaves[position].hex() if position < len(leaves) else "none"
    if made.hex() != committed:
        yield Mismatch(step, "commitment", f"{where}: salted hash", committed, made.hex())


def _value(sample: Sample, name: str) -> float | None:
    return sample.components[name].value if name in sample.components else None


_AROUND = 24


def _first_difference(before: Any, after: Any) -> tuple[str, str]:
    """Both, of long texts from shortly before the first character that differs."""
    if not isinstance(before, str) or not isinstance(after, str):
        return repr(before), repr(after)
    at = next((n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after)))
    first = max(0, at - _AROUND)
    return _excerpt(before, first, at), _excerpt(after, first, at)


def _excerpt(text: str, first: int, at: int) -> str:
    return f"{'…' if first else ''}{text[first : at + _AROUND]!a} (differs from character {at + 1} on)"


def _shown(value: float | None) -> str:
    return "none" if value is None else repr(value)


# ---------------------------------------------------------------------- metrics


def _compare_metrics(
    recorded: Mapping[str, float] | None,
    again: ReplayedStep,
    result: StepComparison,
    bounds: Bounds | None,
    *,
    same_completions: bool,
) -> None:
    if recorded is None:
        result.not_compared.append("metrics: this card does not show them")
        return
    if bounds is not None and not same_completions:
        result.not_compared.append("metrics: they are of other completions")
        return
    for name in sorted({*recorded, *again.metrics}):
        if (first := name.split("/")[0]) in OF_THE_MACHINE or first == _EVALUATED:
            result.not_compared.append(name)
            continue
        result.metrics += 1
        before, after = recorded.get(name), again.metrics.get(name)
        if before == after:
            continue
        by = after - before if before is not None and after is not None else None
        near = bounds is not None and before is not None and after is not None and bounds.metric_fits(before, after)
        finite = by if by is not None and math.isfinite(by) else None
        result.mismatches.append(
            Mismatch(again.step, "metric", name, _shown(before), _shown(after), finite, within=near)
        )
