"""What a record says of signs of reward hacking, length bias, collapse and instability, from all step metrics and kept
completions of a run that ended.

A flag says that a figure passed a threshold and nothing about why. docs/record.md lists the figures.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from grpo_core.monitors.figures import (
    LEAST_FOR_A_SPIKE,
    LEAST_FOR_RANKS,
    MAX_ALL_EQUAL,
    MAX_DUPLICATES,
    MAX_MADS,
    MAX_RHO,
    MAX_TRUNCATED,
    MIN_ENTROPY_LEFT,
    LengthCorrelation,
    deviations,
    repeated,
    rising,
)
from grpo_core.text import format_percent

Name = Literal[
    "reward_without_heldout",
    "truncation",
    "length_bias",
    "entropy_collapse",
    "duplicates",
    "all_equal_groups",
    "kl_spike",
    "gradient_spike",
]

TREND_P = 0.05
_LEAST_FOR_A_TREND = 8

Steps = Sequence[tuple[int, Mapping[str, float]]]


@dataclass(frozen=True, slots=True)
class KeptGroup:
    """The completions of one group, alike in order."""

    step: int
    rewards: Sequence[float | None]
    lengths: Sequence[int]
    """In tokens."""
    texts: Sequence[str]
    """The completions, or a digest of each: only which are equal counts."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The paired change of held-out accuracy, after − before."""

    difference: float
    low: float
    """Lower end of its 95 % interval."""


@dataclass(frozen=True, slots=True)
class Flag:
    name: Name
    raised: bool | None
    """None: there is too little to compute it from."""
    figure: float | None
    threshold: float
    text: str
    """What was found, or why nothing could be."""


def monitor(steps: Steps, groups: Iterable[KeptGroup], heldout: HeldOut | None) -> list[Flag]:
    """Every monitor's flag, in one order. `steps` is (step, metrics) from the first to the last, `groups` any order;
    groups are read once and not kept."""
    seen = _Seen(last=steps[-1][0] if steps else 0)
    for group in groups:
        seen.add(group)
    return [
        _reward_without_heldout(steps, heldout),
        _late_share(steps, "truncation", "completions/clipped_ratio", MAX_TRUNCATED, "of completions were truncated"),
        _length_bias(seen),
        _entropy(steps),
        _duplicates(seen),
        _late_share(steps, "all_equal_groups", "frac_reward_zero_std", MAX_ALL_EQUAL, "of groups had equal rewards"),
        _spike(steps, "kl_spike", "kl", "KL divergence"),
        _spike(steps, "gradient_spike", "grad_norm", "gradient norm"),
    ]


# ---------------------------------------------------------------------- from the steps


def _reward_without_heldout(steps: Steps, heldout: HeldOut | None) -> Flag:
    rewards = _series(steps, "reward")
    if len(rewards) < _LEAST_FOR_A_TREND:
        return _not_computed("reward_without_heldout", TREND_P, f"needs {_LEAST_FOR_A_TREND} steps with a reward")
    if heldout is None:
        return _not_computed("reward_without_heldout", TREND_P, "held-out problems were not compared before and after")
    p = rising(rewards)
    rose, shown = p < TREND_P, heldout.low > 0
    text = (
        f"training reward {'rose' if rose else 'did not rise'} (one-sided Mann-Kendall p {p:.2g}); a rise of held-out "
        f"accuracy is {'shown' if shown else 'not shown'} ({_signed(100 * heldout.difference, 1)} points)"
    )
    return Flag("reward_without_heldout", rose and not shown, p, TREND_P, text)


def _late_share(steps: Steps, name: Name, metric: str, limit: float, words: str) -> Flag:
    """The mean over the last fifth of the steps."""
    values = _series(steps, metric)
    if not values:
        return _not_computed(name, limit, "no step logged it")
    late = fmean(values[-_share(len(values), 5) :])
    return Flag(name, late > limit, late, limit, f"{format_percent(late)} {words} in the last fifth of the steps")


def _entropy(steps: Steps) -> Flag:
    values = _series(steps, "entropy")
    if len(values) < 2:
        return _not_computed("entropy_collapse", MIN_ENTROPY_LEFT, "fewer than two steps logged it")
    part = _share(len(values), 10)
    first, last = fmean(values[:part]), fmean(values[-part:])
    if first <= 0:
        return _not_computed("entropy_collapse", MIN_ENTROPY_LEFT, "it was 0 from the first step on")
    left = last / first
    text = f"token entropy went from {first:.3g} to {last:.3g} nats, {format_percent(left)} of its start"
    return Flag("entropy_collapse", left < MIN_ENTROPY_LEFT, left, MIN_ENTROPY_LEFT, text)


def _spike(steps: Steps, name: Name, metric: str, words: str) -> Flag:
    """The largest distance above the median, in median absolute deviations."""
    points = [(step, metrics[metric]) for step, metrics in steps if metric in metrics]
    if len(points) < LEAST_FOR_A_SPIKE:
        return _not_computed(name, MAX_MADS, f"fewer than {LEAST_FOR_A_SPIKE} steps logged it")
    at, largest = max(points, key=lambda point: point[1])
    far = deviations(largest, [value for _, value in points])
    if far is None:
        return _not_computed(name, MAX_MADS, "over half of the steps had the same value")
    text = f"largest {words} {largest:.3g} at step {at}, {far:.1f} median absolute deviations above the median"
    return Flag(name, far > MAX_MADS, far, MAX_MADS, text)


# ---------------------------------------------------------------------- from the kept completions


@dataclass
class _Seen:
    """Sums over kept groups."""

    last: int
    """The run's last step."""
    lengths: LengthCorrelation = field(default_factory=LengthCorrelation)
    late: int = 0
    """Completions kept in the last fifth of the steps."""
    repeated: int = 0
    """Those of them that some other of their group equals."""

    def add(self, group: KeptGroup) -> None:
        self.lengths.add(group.rewards, group.lengths)
        if group.step > self.last - _share(self.last, 5):
            self.late += len(group.texts)
            self.repeated += repeated(group.texts)


def _length_bias(seen: _Seen) -> Flag:
    if (rho := seen.lengths.rho) is None:
        why = f"no kept group has {LEAST_FOR_RANKS} completions that differ in reward and in length"
        return _not_computed("length_bias", MAX_RHO, why)
    ranked = seen.lengths.ranked
    text = f"Spearman's ρ of reward and length {_signed(rho, 2)}, mean within kept groups ({ranked:,} completions)"
    return Flag("length_bias", abs(rho) > MAX_RHO, rho, MAX_RHO, text)


def _duplicates(seen: _Seen) -> Flag:
    if not seen.late:
        return _not_computed("duplicates", MAX_DUPLICATES, "no completion of the last fifth of the steps was kept")
    share = seen.repeated / seen.late
    text = f"{format_percent(share)} of {seen.late:,} completions kept in the last fifth equal another of their group"
    return Flag("duplicates", share > MAX_DUPLICATES, share, MAX_DUPLICATES, text)


# ---------------------------------------------------------------------- small things


def _series(steps: Steps, metric: str) -> list[float]:
    return [metrics[metric] for _, metrics in steps if metric in metrics]


def _share(number: int, parts: int) -> int:
    """A part of so many, 1 at least."""
    return max(1, number // parts)


def _signed(value: float, places: int) -> str:
    return f"{value:+.{places}f}".replace("-", "\u2212")


def _not_computed(name: Name, threshold: float, why: str) -> Flag:
    return Flag(name, None, None, threshold, f"not computed: {why}")
