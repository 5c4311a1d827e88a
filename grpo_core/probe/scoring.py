"""Scores completions with a runner, and keeps what the report shows of the calls: times, errors, what they cost."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from pydantic import JsonValue

from grpo_core.data.problem import Problem
from grpo_core.errors import RewardError
from grpo_core.probe.report import Repeats, Timing
from grpo_core.probe.verdict import SAME, interval, quantile
from grpo_core.records.types import ErrorClass
from grpo_core.rewards.base import ScoreRequest
from grpo_core.rewards.rubric import Rubric, Scored
from grpo_core.rewards.runner import Runner
from grpo_core.text import UNSTORABLE

BATCH, FIRST = 64, 8
"""Completions that are given to the runner at once; progress is reported between batches."""
CHARS_PER_TOKEN = 4
"""No tokenizer is at hand, so a component that counts tokens is given a quarter of the characters."""
MESSAGES = 5
HANGING = 16
"""Calls that hung, or whose server or sandbox was not there, after which no more are made: each costs its deadline."""
_SLOW: tuple[ErrorClass, ...] = ("timeout", "infra")
_USED = ("calls", "requests", "tokens", "prompt_tokens", "completion_tokens", "cache_hits", "cached", "refusals")

Sample = tuple[Problem, str]


@dataclass(frozen=True)
class ProbeScore:
    """What one completion earned."""

    reward: float | None
    failed: bool
    """A component ended on it without a result, whether it was scored 0 or not at all."""
    details: dict[str, str]
    values: dict[str, float | None]


NOT_SCORED = ProbeScore(None, False, {"probe": "not scored: the probe had given up"}, {})


@dataclass
class ProbeScorer:
    """Scores, and counts."""

    rubric: Rubric
    runner: Runner
    check: Callable[[], None]
    calls: int = 0
    _seconds: dict[str, list[float]] = field(default_factory=dict)
    errors: Counter[ErrorClass] = field(default_factory=Counter)
    messages: dict[str, None] = field(default_factory=dict)
    _other_costs: list[dict[str, dict[str, float]]] = field(default_factory=list)

    def all(self, samples: Sequence[Sample], report: Callable[[int], None]) -> list[ProbeScore]:
        """The score of each sample, in order."""
        scores: list[ProbeScore] = []
        while len(scores) < len(samples):
            self.check()
            report(len(scores))
            if self.given_up:
                scores += [NOT_SCORED] * (len(samples) - len(scores))
            else:  # few at first, to notice soon that all of them hang
                scores += self._batch(samples[len(scores) : len(scores) + (BATCH if self.calls >= BATCH else FIRST)])
        report(len(samples))
        return scores

    @property
    def given_up(self) -> str:
        """Why no more calls are made; empty while they are."""
        slow = {kind: self.errors[kind] for kind in _SLOW if self.errors[kind]}
        if sum(slow.values()) < HANGING:
            return ""
        counted = " and ".join(f"{n} of class {kind}" for kind, n in slow.items())
        return f"given up after {counted}: each such call takes its whole deadline"

    def _batch(self, samples: Sequence[Sample]) -> list[ProbeScore]:
        batch = [ScoreRequest(problem, text, 1 + len(text) // CHARS_PER_TOKEN) for problem, text in samples]
        if self.rubric.config.on_error != "fail":
            return [self._record(scored) for scored in self.runner.score(batch, check=self.check)]
        return [self._alone(sample) for sample in batch]  # the first failure would end the others too

    def _alone(self, sample: ScoreRequest) -> ProbeScore:
        try:
            return self._record(self.runner.score([sample], check=self.check)[0])
        except RewardError as error:
            self.calls += 1
            self._error("verifier", str(error))
            return ProbeScore(None, True, {"error": str(error)}, {})

    def _record(self, scored: Scored) -> ProbeScore:
        self.calls += 1
        for name, score in scored.components.items():
            self._seconds.setdefault(name, []).append(score.seconds)
            if score.error_class is not None:  # also where the completion was at fault and scored 0, as for hanging
                self._error(score.error_class, score.error or score.detail)
        parts = scored.components
        return ProbeScore(
            reward=scored.reward,
            failed=any(score.error_class is not None for score in parts.values()),
            details={name: score.error or score.detail for name, score in parts.items()},
            values={name: score.value for name, score in parts.items()},
        )

    def _error(self, kind: ErrorClass, message: str) -> None:
        self.errors[kind] += 1
        if len(self.messages) < MESSAGES:
            self.messages.setdefault(UNSTORABLE.sub("\ufffd", message[:500]))

    def count_in(self, other: "ProbeScorer") -> None:
        """Add another runner's calls, errors and costs; not its times, which include its start."""
        self.calls += other.calls
        self.errors.update(other.errors)
        self._other_costs.append(other.cost(other.runner.facts()))

    def timing(self) -> dict[str, Timing]:
        return {name: _timing(sorted(seconds)) for name, seconds in self._seconds.items()}

    def cost(self, facts: Mapping[str, JsonValue]) -> dict[str, dict[str, float]]:
        """Usage by component, for those that count it, including the runners added by `count_in`."""
        costs: dict[str, dict[str, float]] = {}
        for name, fact in facts.items():
            used = {key: float(value) for key in _USED if isinstance(value := _in(fact, key), int | float)}
            for other in self._other_costs:
                used = {key: value + other.get(name, {}).get(key, 0.0) for key, value in used.items()}
            if used:
                costs[name] = used
        return costs

    def sandbox(self, facts: Mapping[str, JsonValue]) -> dict[str, JsonValue] | None:
        reports = (_in(fact, "sandbox") for fact in facts.values())
        return next((report for report in reports if isinstance(report, dict)), None)


def _in(facts: JsonValue, key: str) -> JsonValue:
    return facts.get(key) if isinstance(facts, dict) else None


def repeats(first: Sequence[ProbeScore], second: Sequence[ProbeScore]) -> Repeats:
    """How far two scorings of the same completions differ, where both were made."""
    pairs = [(score, other) for score, other in zip(first, second, strict=False) if NOT_SCORED not in (score, other)]
    differ = sum(_differ(score, other) for score, other in pairs)
    gaps = [
        abs(score.reward - other.reward)
        for score, other in pairs
        if score.reward is not None and other.reward is not None
    ]
    n = len(pairs)
    return Repeats(
        checked=n,
        differ=differ,
        share=differ / n if n else None,
        wilson95=interval(differ, n),
        largest=max(gaps, default=0.0),
    )


def _differ(score: ProbeScore, other: ProbeScore) -> bool:
    return _other(score.reward, other.reward) or any(
        _other(value, other.values.get(name)) for name, value in score.values.items()
    )


def _other(value: float | None, other: float | None) -> bool:
    if value is None or other is None:
        return value is not other
    return abs(value - other) > SAME * max(1.0, abs(value), abs(other))


def _timing(seconds: Sequence[float]) -> Timing:
    return Timing(calls=len(seconds), median=median(seconds), p95=quantile(seconds, 0.95), largest=seconds[-1])
