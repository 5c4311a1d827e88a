"""Signs of reward hacking, length bias, collapse and instability, from a run's step metrics and kept completions.

A flag says that a figure passed a threshold and nothing about why. The thresholds are proposals of this project, not
values from the literature; docs/record.md lists them. Plain Python, no torch.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median
from typing import Literal

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
MAX_TRUNCATED = 0.2
MAX_RHO = 0.3
MIN_ENTROPY_LEFT = 0.2
MAX_DUPLICATES = 0.5
MAX_ALL_EQUAL = 0.8
MAX_MADS = 5.0

_BLOCKS = 200
"""Steps are averaged into at most so many blocks before a trend is looked for: the test compares all pairs."""
_LEAST_FOR_A_TREND = 8
_LEAST_FOR_A_SPIKE = 10
_LEAST_FOR_RANKS = 4

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
    if len(points) < _LEAST_FOR_A_SPIKE:
        return _not_computed(name, MAX_MADS, f"fewer than {_LEAST_FOR_A_SPIKE} steps logged it")
    middle = median(value for _, value in points)
    spread = median(abs(value - middle) for _, value in points)
    if spread == 0:
        return _not_computed(name, MAX_MADS, "over half of the steps had the same value")
    at, largest = max(points, key=lambda point: point[1])
    far = (largest - middle) / spread
    text = f"largest {words} {largest:.3g} at step {at}, {far:.1f} median absolute deviations above the median"
    return Flag(name, far > MAX_MADS, far, MAX_MADS, text)


def rising(values: Sequence[float]) -> float:
    """One-sided p that `values`, in order, have no rising trend: Mann (1945) and Kendall (1975), with the correction
    for ties and for continuity. Needs 3 values or more."""
    block = math.ceil(len(values) / _BLOCKS)
    means = [fmean(values[at : at + block]) for at in range(0, len(values), block)]
    n = len(means)
    s = sum((means[j] > means[i]) - (means[j] < means[i]) for i in range(n) for j in range(i + 1, n))
    ties = Counter(means).values()
    variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    if variance <= 0 or s == 0:
        return 0.5 if s == 0 else 1.0
    return 1 - NormalDist().cdf((s - math.copysign(1, s)) / math.sqrt(variance))


# ---------------------------------------------------------------------- from the kept completions


@dataclass
class _Seen:
    """Sums over kept groups."""

    last: int
    """The run's last step."""
    rho: float = 0.0
    """Sum of each group's rank correlation, times its size."""
    ranked: int = 0
    """Completions of groups in which both reward and length differ."""
    late: int = 0
    """Completions kept in the last fifth of the steps."""
    repeated: int = 0
    """Those of them that some other of their group equals."""

    def add(self, group: KeptGroup) -> None:
        pairs = [(r, n) for r, n in zip(group.rewards, group.lengths, strict=True) if r is not None]
        if len(pairs) >= _LEAST_FOR_RANKS and (rho := spearman(pairs)) is not None:
            self.rho += rho * len(pairs)
            self.ranked += len(pairs)
        if group.step > self.last - _share(self.last, 5):
            self.late += len(group.texts)
            self.repeated += sum(count for count in Counter(group.texts).values() if count > 1)


def _length_bias(seen: _Seen) -> Flag:
    if not seen.ranked:
        why = f"no kept group has {_LEAST_FOR_RANKS} completions that differ in reward and in length"
        return _not_computed("length_bias", MAX_RHO, why)
    rho = seen.rho / seen.ranked
    text = f"Spearman's ρ of reward and length {_signed(rho, 2)}, mean within kept groups ({seen.ranked:,} completions)"
    return Flag("length_bias", abs(rho) > MAX_RHO, rho, MAX_RHO, text)


def _duplicates(seen: _Seen) -> Flag:
    if not seen.late:
        return _not_computed("duplicates", MAX_DUPLICATES, "no completion of the last fifth of the steps was kept")
    share = seen.repeated / seen.late
    text = f"{format_percent(share)} of {seen.late:,} completions kept in the last fifth equal another of their group"
    return Flag("duplicates", share > MAX_DUPLICATES, share, MAX_DUPLICATES, text)


def spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Rank correlation with mean ranks for ties; None where one side does not vary."""
    first, second = (_ranks(side) for side in zip(*pairs, strict=True))
    mean = (len(pairs) + 1) / 2
    both = math.fsum((a - mean) * (b - mean) for a, b in zip(first, second, strict=True))
    spreads = [math.fsum((a - mean) ** 2 for a in side) for side in (first, second)]
    return both / math.sqrt(spreads[0] * spreads[1]) if all(spreads) else None


def _ranks(values: Sequence[float]) -> list[float]:
    """1 for the smallest; equal values share the mean of their ranks."""
    ranks: dict[float, list[int]] = {}
    for rank, value in enumerate(sorted(values), start=1):
        ranks.setdefault(value, []).append(rank)
    return [fmean(ranks[value]) for value in values]


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
