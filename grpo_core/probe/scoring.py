"""Asks a runner about completions, and keeps what the report tells of the calls: times, errors, what they cost."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from pydantic import JsonValue

from grpo_core.data.problem import Problem
from grpo_core.errors import RewardError
from grpo_core.probe.report import Repeats, Timing
from grpo_core.probe.verdict import interval, quantile
from grpo_core.records.types import ErrorClass
from grpo_core.rewards.base import Unscored
from grpo_core.rewards.rubric import Rubric, Scored
from grpo_core.rewards.runner import Runner
from grpo_core.text import UNSTORABLE

BATCH, FIRST = 64, 8
"""Completions that are given to the runner at once; between batches progress is told."""
CHARS_PER_TOKEN = 4
"""No tokenizer is at hand, so a component that counts tokens is told a quarter of the characters."""
MESSAGES = 5
HANGING = 16
"""Calls that hung, or whose server or sandbox was not there, after which no more are made: each costs its deadline."""
_SLOW: tuple[ErrorClass, ...] = ("timeout", "infra")
SAME = 1e-6
"""Two rewards that differ by less, relative to their size, are the same: a model's arithmetic depends on its batch."""
_USED = ("calls", "requests", "tokens", "prompt_tokens", "completion_tokens", "cache_hits", "cached", "refusals")

Sample = tuple[Problem, str]


@dataclass(frozen=True)
class Told:
    """What one completion earned."""

    reward: float | None
    failed: bool
    """A component failed on it."""
    details: dict[str, str]
    values: dict[str, float | None]


NOT_ASKED = Told(None, False, {"probe": "not scored: the probe had given up"}, {})


@dataclass
class Asking:
    """Scores, and counts."""

    rubric: Rubric
    runner: Runner
    check: Callable[[], None]
    calls: int = 0
    _seconds: dict[str, list[float]] = field(default_factory=dict)
    _errors: Counter[ErrorClass] = field(default_factory=Counter)
    _messages: dict[str, None] = field(default_factory=dict)
    _beside: list[dict[str, dict[str, float]]] = field(default_factory=list)

    def all(self, samples: Sequence[Sample], tell: Callable[[int], None]) -> list[Told]:
        """What each earned, in order."""
        told: list[Told] = []
        while len(told) < len(samples):
            self.check()
            tell(len(told))
            if self.given_up:
                told += [NOT_ASKED] * (len(samples) - len(told))
            else:  # few at first, to notice soon that all of them hang
                told += self._batch(samples[len(told) : len(told) + (BATCH if self.calls >= BATCH else FIRST)])
        tell(len(samples))
        return told

    @property
    def given_up(self) -> str:
        """Why no more calls are made; empty while they are."""
        slow = {kind: self._errors[kind] for kind in _SLOW if self._errors[kind]}
        if sum(slow.values()) < HANGING:
            return ""
        counted = " and ".join(f"{n} of class {kind}" for kind, n in slow.items())
        return f"given up after {counted}: each such call takes its whole deadline"

    def _batch(self, samples: Sequence[Sample]) -> list[Told]:
        batch = [Unscored(problem, text, 1 + len(text) // CHARS_PER_TOKEN) for problem, text in samples]
        if self.rubric.config.on_error != "fail":
            return [self._told(scored) for scored in self.runner.score(batch, check=self.check)]
        return [self._alone(sample) for sample in batch]  # the first failure would take the others along

    def _alone(self, sample: Unscored) -> Told:
        try:
            return self._told(self.runner.score([sample], check=self.check)[0])
        except RewardError as error:
            self.calls += 1
            self._error("verifier", str(error))
            return Told(None, True, {"error": str(error)}, {})

    def _told(self, scored: Scored) -> Told:
        self.calls += 1
        for name, one in scored.components.items():
            self._seconds.setdefault(name, []).append(one.seconds)
            if one.error is not None:
                self._error(one.error_class or "verifier", one.error)
        parts = scored.components
        return Told(
            reward=scored.reward,
            failed=any(one.error is not None for one in parts.values()),
            details={name: one.error or one.detail for name, one in parts.items()},
            values={name: one.value for name, one in parts.items()},
        )

    def _error(self, kind: ErrorClass, message: str) -> None:
        self._errors[kind] += 1
        if len(self._messages) < MESSAGES:
            self._messages.setdefault(UNSTORABLE.sub("\ufffd", message[:500]))

    def count_in(self, other: "Asking") -> None:
        """Add what another runner was asked and used; its times stay out, for they hold its start."""
        self.calls += other.calls
        self._errors.update(other._errors)
        self._beside.append(other.cost(other.facts()))

    def errors(self) -> dict[ErrorClass, int]:
        return dict(self._errors)

    def error_examples(self) -> tuple[str, ...]:
        return tuple(self._messages)

    def timing(self) -> dict[str, Timing]:
        return {name: _timing(sorted(seconds)) for name, seconds in self._seconds.items()}

    def facts(self) -> dict[str, JsonValue]:
        return self.runner.facts()

    def cost(self, facts: Mapping[str, JsonValue]) -> dict[str, dict[str, float]]:
        """Of each component that counts what it uses: what it counted, other runners that were counted in too."""
        found: dict[str, dict[str, float]] = {}
        for name, one in facts.items():
            used = {key: float(value) for key in _USED if isinstance(value := _in(one, key), int | float)}
            for other in self._beside:
                used = {key: value + other.get(name, {}).get(key, 0.0) for key, value in used.items()}
            if used:
                found[name] = used
        return found

    def sandbox(self, facts: Mapping[str, JsonValue]) -> dict[str, JsonValue] | None:
        for one in facts.values():
            report = _in(one, "sandbox")
            if isinstance(report, dict):
                return report
        return None


def _in(facts: JsonValue, key: str) -> JsonValue:
    return facts.get(key) if isinstance(facts, dict) else None


def repeats(first: Sequence[Told], second: Sequence[Told]) -> Repeats:
    """How far two scorings of the same completions differ, where both were made."""
    pairs = [(one, other) for one, other in zip(first, second, strict=False) if NOT_ASKED not in (one, other)]
    differ = sum(_differ(one, other) for one, other in pairs)
    gaps = [
        abs(one.reward - other.reward) for one, other in pairs if one.reward is not None and other.reward is not None
    ]
    n = len(pairs)
    return Repeats(
        checked=n,
        differ=differ,
        share=differ / n if n else None,
        wilson95=interval(differ, n),
        largest=max(gaps, default=0.0),
    )


def _differ(one: Told, other: Told) -> bool:
    return _other(one.reward, other.reward) or any(
        _other(value, other.values.get(name)) for name, value in one.values.items()
    )


def _other(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is not other
    return abs(one - other) > SAME * max(1.0, abs(one), abs(other))


def _timing(seconds: Sequence[float]) -> Timing:
    return Timing(calls=len(seconds), median=median(seconds), p95=quantile(seconds, 0.95), largest=seconds[-1])
