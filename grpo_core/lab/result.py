"""The result of a job of the reward lab on given or sampled answers: every one with its reward, and the sums over all.

Loads no torch. Numbers are over all samples, also where texts had to be left out to keep the result small.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from grpo_core.advantages.base import Signal
from grpo_core.config.algorithm import AlgorithmConfig
from grpo_core.config.reward import RewardConfig
from grpo_core.records.bounds import Facts
from grpo_core.records.types import Body, ComponentScore, ErrorClass, FinishReason
from grpo_core.rewards import Scored
from grpo_core.rewards.signal import signal_of
from grpo_core.stats.paired import nearly_equal
from grpo_core.text import UNSTORABLE

SCHEMA = "cohort-lab/1"
MAX_RESULT_BYTES = 8 * 1024 * 1024
_BINS = 20
_TEXT_CHARS = 32_000
"""Of one prompt, answer or completion in a result; what is cut says so."""


Row = TypeVar("Row", bound=Body)


class LabSample(Body):
    """One answer and what it earned."""

    problem_id: str
    prompt: str
    answer: str
    completion: str
    prompted: str = ""
    """The prompt as the policy saw it: template, conversation, beginning of the answer. Empty where none saw it."""
    tokens: int | None = None
    """Of the completion; null where no tokenizer saw it."""
    finish: FinishReason | None = None
    """How sampling it ended; null for a given text."""
    reward: float | None
    """Null when it could not be computed."""
    components: dict[str, ComponentScore]
    group: Annotated[int, Field(ge=0)]
    """Which group it is of, from 0."""
    origin: Literal["given", "row", "reference", "sampled"] = "given"
    """given: pasted. row: the dataset's own completion. reference: the reference answer in the reward's form."""
    texts_left_out: bool = False
    """Prompts, answer, completion and the components' details are not here, because the result was too large."""


class NoSignal(Body):
    """Groups whose rewards are all equal, from which GRPO learns nothing."""

    groups: int
    of: int
    """Groups with at least two rewards."""
    all_right: int
    all_wrong: int
    """One component that judges marks every answer wrong; the rest are equal for another reason."""
    all_equal: int
    phantom: int = 0
    """Rewards differ by shaping alone, which a run with the default algorithm.signal_gate does not learn from."""
    unscored: int = 0
    """Groups with fewer than two rewards; not among `of`."""


class Summary(Body):
    n: int
    mean: float | None
    std: float | None
    """With n - 1; null below two."""
    min: float | None
    max: float | None


class Histogram(Body):
    edges: list[float]
    """One more than counts; the last bin holds its upper edge too."""
    counts: list[int]


class Times(Body):
    """Seconds of a component over one sample."""

    median: float
    p95: float


class LabResult(Body):
    """result.json of a job of the kinds try and sample."""

    model_config = ConfigDict(populate_by_name=True)

    schema_: Literal["cohort-lab/1"] = Field(default="cohort-lab/1", alias="schema")
    kind: Literal["try", "sample"]
    rubric_digest: str
    samples: list[LabSample]
    texts_left_out: int = 0
    """How many samples are here without their texts."""
    groups: int
    group_size: int | None
    """G; null where groups are of different sizes, as given texts are."""
    no_signal: NoSignal | None
    """Null for given texts, which are no groups."""
    rewards: Summary
    histogram: Histogram
    component_means: dict[str, float]
    """Mean of weight times value, over the samples that the component could score."""
    component_shares: dict[str, float]
    """Part of each in what is paid: mean of |weight times value| over the sum of these of all components."""
    passed: dict[str, float]
    """Share of samples that a component passed, of those that it judged right or wrong."""
    errors: dict[ErrorClass, int]
    """By class, how many component scores were errors."""
    errors_by_component: dict[str, int]
    seconds_per_call: dict[str, Times]
    cost: Facts = Field(default_factory=dict)
    """What components report: versions, calls, a judge's usage."""
    sandbox: Facts | None = None
    """Report of the sandbox, where the reward used one."""
    form: str | None = None
    """Form that reference answers were written in, where any were."""
    device: str = "cpu"
    problems_left_out: int = 0
    """Problems whose prompt was too long for the model."""
    seconds: float
    """Of the whole job, loading included."""


def result_of(
    *,
    kind: Literal["try", "sample"],
    reward: RewardConfig,
    samples: Sequence[LabSample],
    group_size: int | None = None,
    **more: Any,
) -> LabResult:
    """The sums over the samples; `more`: LabResult's other fields."""
    weights = {component.name: component.weight for component in reward.components}
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    by_name = {name: [s.components[name] for s in samples if name in s.components] for name in weights}
    values = {
        name: [weights[name] * score.value for score in mine if score.value is not None]
        for name, mine in by_name.items()
    }
    sizes = {name: _mean([abs(value) for value in weighted]) for name, weighted in values.items()}
    whole = math.fsum(sizes.values())
    scores = [(name, score) for sample in samples for name, score in sample.components.items()]
    judged = {name: [s.passed for s in mine if s.passed is not None] for name, mine in by_name.items()}
    return LabResult(
        **more,
        kind=kind,
        samples=list(samples),
        groups=len({sample.group for sample in samples}),
        group_size=group_size,
        no_signal=no_signal(samples, reward) if kind == "sample" else None,
        rewards=summary(rewards),
        histogram=histogram(rewards),
        component_means={name: _mean(weighted) for name, weighted in values.items()},
        component_shares={name: size / whole if whole else 0.0 for name, size in sizes.items()},
        passed={name: _mean([float(verdict) for verdict in verdicts]) for name, verdicts in judged.items() if verdicts},
        errors=dict(Counter(score.error_class or "verifier" for _, score in scores if score.error is not None)),
        errors_by_component=dict(Counter(name for name, score in scores if score.error is not None)),
        seconds_per_call={name: times([score.seconds for score in mine]) for name, mine in by_name.items() if mine},
    )


def group_signal(members: Sequence[LabSample], reward: RewardConfig) -> Signal:
    """What varies in a group, as a run that leaves `algorithm` at its defaults counts it."""
    return signal_of([Scored(sample.reward, sample.components) for sample in members], reward, AlgorithmConfig())


def no_signal(samples: Sequence[LabSample], reward: RewardConfig) -> NoSignal:
    groups: dict[int, list[LabSample]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample)
    counts: Counter[str] = Counter()
    for members in groups.values():
        signal = group_signal(members, reward)
        counts[_why_equal(members) if signal == "all_equal" else signal] += 1
    without = {cause: counts[cause] for cause in ("all_right", "all_wrong", "all_equal", "phantom")}
    groups_without = sum(without.values())
    of = groups_without + counts["mixed"]
    return NoSignal(groups=groups_without, of=of, unscored=counts["unscored"], **without)


def _why_equal(members: Sequence[LabSample]) -> str:
    """all_right: every component that judges passed every answer. all_wrong: one failed every answer."""
    scored = [sample for sample in members if sample.reward is not None]
    verdicts = [{sample.components[name].passed for sample in scored} for name in scored[0].components]
    judging = [outcomes for outcomes in verdicts if None not in outcomes]
    if judging and all(outcomes == {True} for outcomes in judging):
        return "all_right"
    return "all_wrong" if any(outcomes == {False} for outcomes in judging) else "all_equal"


def summary(values: Sequence[float]) -> Summary:
    if not values:
        return Summary(n=0, mean=None, std=None, min=None, max=None)
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Summary(n=len(values), mean=math.fsum(values) / len(values), std=spread, min=min(values), max=max(values))


def histogram(values: Sequence[float]) -> Histogram:
    """20 bins of equal width from the least value to the largest; one bin where they are all equal."""
    if not values:
        return Histogram(edges=[], counts=[])
    low, high = min(values), max(values)
    if nearly_equal(values):
        return Histogram(edges=[low, high], counts=[len(values)])
    width = (high - low) / _BINS
    counts = [0] * _BINS
    for value in values:
        counts[min(int((value - low) / width), _BINS - 1)] += 1
    return Histogram(edges=[low + index * width for index in range(_BINS)] + [high], counts=counts)


def times(seconds: Sequence[float]) -> Times:
    """p95: the least time that at least 95 of 100 calls did not take longer than."""
    ordered = sorted(seconds)
    return Times(median=statistics.median(ordered), p95=ordered[math.ceil(0.95 * len(ordered)) - 1])


def fitted(result: LabResult, limit: int = MAX_RESULT_BYTES) -> LabResult:
    """The result in at most `limit` bytes of JSON: where it has more, the last samples lose their texts, and it records
    how many did."""
    samples, left_out = fewer_texts(result, result.samples, _bare, limit)
    return result.model_copy(update={"samples": samples, "texts_left_out": left_out}) if left_out else result


def fewer_texts(whole: BaseModel, rows: Sequence[Row], bare: Callable[[Row], Row], limit: int) -> tuple[list[Row], int]:
    """The rows of `whole` such that it has at most `limit` bytes of JSON, the last ones by `bare` without their texts,
    and how many these are."""
    size = len(_json(whole))
    kept, left_out = list(rows), 0
    while size > limit - (1024 if left_out else 0) and left_out < len(kept):  # the count itself takes some bytes
        left_out += 1
        row = bare(kept[-left_out])
        size -= len(_json(kept[-left_out])) - len(_json(row))
        kept[-left_out] = row
    return kept, left_out


def kept_text(text: str) -> str:
    clean = UNSTORABLE.sub("\ufffd", text)
    if len(clean) <= _TEXT_CHARS:
        return clean
    return f"{clean[:_TEXT_CHARS]}… ({len(clean) - _TEXT_CHARS:,} more characters)"


def _bare(sample: LabSample) -> LabSample:
    scores = {
        name: score.model_copy(update={"detail": "", "traceback": "", "printed": "", "error": score.error and "…"})
        for name, score in sample.components.items()
    }
    empty = {"prompt": "", "answer": "", "completion": "", "prompted": ""}
    return sample.model_copy(update={**empty, "components": scores, "texts_left_out": True})


def _json(body: BaseModel) -> bytes:
    return body.model_dump_json(by_alias=True).encode()


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
