"""Rejection sampling's choice: which completions of one problem become rows of a dataset, and what dropped the others.

Filters apply in the order of FILTERS, and each completion is counted at the first one that drops it, so that the counts
sum to what was sampled. Source: DeepSeek-R1 (arXiv 2501.12948), section 2.3.3. Loads no torch.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from grpo_core.config.reward import RewardConfig
from grpo_core.config.sample import FilterConfig, SampleConfig
from grpo_core.data.near_duplicates import near_duplicates
from grpo_core.records.types import Group, Sample
from grpo_core.text import UNSTORABLE

KEPT = "kept"
FILTERS: dict[str, tuple[str, str]] = {
    "unscored": ("that the reward could not score", "see the errors of the reward: reward_errors in the metrics"),
    "empty": ("without text", "give the model a prompt that it answers"),
    "unstorable": ("with characters that no dataset can hold, such as NUL", "sample at a lower temperature"),
    "no_verdict": (
        "without a verdict of the success component",
        "name a verifier in reward.success, or set filter.passed: false",
    ),
    "wrong": ("wrong by the success component", "sample more (sampling.group_size), or set filter.passed: false"),
    "low_reward": ("with a reward below filter.min_reward", "lower filter.min_reward"),
    "component": ("failed by a component of filter.components", "take components out of filter.components"),
    "unfinished": (
        "that reached the longest length",
        "raise sampling.max_completion_tokens, or set filter.finished: false",
    ),
    "too_short": ("shorter than filter.min_tokens", "lower filter.min_tokens"),
    "too_long": ("longer than filter.max_tokens", "raise filter.max_tokens"),
    "duplicate": ("the same as an earlier one of its problem", "set filter.duplicates: keep"),
    "near_duplicate": ("nearly the same as an earlier one of its problem", "raise filter.near_share"),
    "over_quota": ("more than filter.per_problem of its problem", "raise filter.per_problem"),
    "unpaired": ("without a wrong one of its problem to be above", "sample more (sampling.group_size)"),
}
"""Filter → (the completions that it drops, as said after their number; how to loosen it), in the order in which they
apply."""
_GRAM = 5
"""Words of a gram that near-duplicates are compared by."""


@dataclass(frozen=True)
class Choice:
    """What became of one group's completions."""

    kept: tuple[Sample, ...]
    """In the order in which they were sampled."""
    rejected: tuple[Sample, ...] = ()
    """With `rows: pairs`: the wrong completion below each of those kept."""
    counts: Counter[str] = field(default_factory=Counter)
    """KEPT, or the filter that dropped it → completions. They sum to the group's."""


def choose(group: Group, config: SampleConfig) -> Choice:
    """Filter one problem's completions, choose among those that pass, and for pairs put each above a wrong one."""
    rules, dropped = config.filter, Counter[str]()
    passing: list[Sample] = []
    for sample in group.samples:
        reason = _unusable(sample)
        if reason is None and config.rows != "scores":
            reason = _reason(sample, rules, config.reward)
        if reason is not None:
            dropped[reason] += 1
        else:
            passing.append(sample)
    if config.rows == "scores":
        return _choice(group, passing, dropped)
    passing = _distinct(passing, rules, dropped)
    passing = _best_of(passing, group, config, dropped)
    if config.rows != "pairs":
        return _choice(group, passing, dropped)
    usable = (sample for sample in group.samples if _unusable(sample) is None)
    above = {_spelled(sample) for sample in passing}
    wrong = [s for s in usable if _verdict(s, config.reward) is False and _spelled(s) not in above]
    wrong = _distinct(wrong, rules, Counter())
    pairs = list(zip(passing, wrong, strict=False))
    dropped["unpaired"] = len(passing) - len(pairs)
    return _choice(group, [kept for kept, _ in pairs], dropped, [below for _, below in pairs])


def _choice(group: Group, kept: Iterable[Sample], dropped: Counter[str], below: Iterable[Sample] = ()) -> Choice:
    kept = tuple(kept)
    counts = Counter({KEPT: len(kept)}) + dropped  # + leaves zeros out
    assert counts.total() == len(group.samples)
    return Choice(kept, tuple(below), counts)


def _unusable(sample: Sample) -> str | None:
    """Why no row can hold the completion, whatever the filters; None where one can."""
    if sample.reward is None:
        return "unscored"
    if not sample.completion.strip():
        return "empty"
    return "unstorable" if UNSTORABLE.search(sample.completion) else None


def _reason(sample: Sample, rules: FilterConfig, reward: RewardConfig) -> str | None:
    """The first filter that drops the completion for itself; None where it passes them."""
    assert sample.reward is not None, "_unusable comes first"
    if rules.passed and not (right := _verdict(sample, reward)):
        return "no_verdict" if right is None else "wrong"
    if rules.min_reward is not None and sample.reward < rules.min_reward:
        return "low_reward"
    own = sample.components
    if any(name in own and own[name].passed is not True for name in rules.components):
        return "component"
    if rules.finished and sample.finish_reason == "length":
        return "unfinished"
    if rules.min_tokens is not None and sample.tokens < rules.min_tokens:
        return "too_short"
    return "too_long" if rules.max_tokens is not None and sample.tokens > rules.max_tokens else None


def _verdict(sample: Sample, reward: RewardConfig) -> bool | None:
    """Right or wrong by the success component; None where it cannot say."""
    return sample.components[reward.success_of(sample.components)].passed


def _spelled(sample: Sample) -> str:
    """What two completions are the same by: all but white space."""
    return " ".join(sample.completion.split())


def _distinct(samples: Sequence[Sample], rules: FilterConfig, dropped: Counter[str]) -> list[Sample]:
    if rules.duplicates == "keep":
        return list(samples)
    first: dict[str, Sample] = {}
    for sample in samples:
        first.setdefault(_spelled(sample), sample)
    dropped["duplicate"] += len(samples) - len(first)
    distinct = list(first.values())
    if rules.duplicates != "near":
        return distinct
    near = near_duplicates([sample.completion for sample in distinct], words=_GRAM, share=rules.near_share)
    dropped["near_duplicate"] += len(near)
    return [sample for index, sample in enumerate(distinct) if index not in near]


def _best_of(samples: list[Sample], group: Group, config: SampleConfig, dropped: Counter[str]) -> list[Sample]:
    """At most filter.per_problem of them, in the order in which they were sampled. What is equal is chosen among by
    SHA-256 of seed, group and index."""
    rules = config.filter
    most = rules.per_problem
    if most is None or len(samples) <= most:
        return samples
    stream = f"{config.seed}:{group.step}:{group.index}"
    by_seed = [hashlib.sha256(f"{stream}:{sample.index}".encode()).digest() for sample in samples]
    chosen = sorted(range(len(samples)), key=lambda index: (_preference(samples[index], rules.choose), by_seed[index]))[
        :most
    ]
    dropped["over_quota"] += len(samples) - most
    return [samples[index] for index in sorted(chosen)]


def _preference(sample: Sample, choose: str) -> float:
    """Least first."""
    match choose:
        case "best":
            return -(sample.reward or 0.0)
        case "shortest":
            return sample.tokens
        case _:
            return 0.0


def in_order(counts: Counter[str]) -> dict[str, int]:
    """Counts with KEPT first, then the filters in the order in which they apply; those that dropped nothing are left
    out."""
    return {name: counts[name] for name in (KEPT, *FILTERS) if counts[name]}


def described(name: str) -> str:
    """A filter with what it drops; KEPT and names that are no filter's as they are."""
    return f"{name}: {FILTERS[name][0]}" if name in FILTERS else name


def table(counts: Mapping[str, int]) -> list[str]:
    """Lines for a person: how many completions were kept, and how many each filter dropped."""
    total = sum(counts.values())
    return [f"{count:>9,}  {100 * count / total:5.1f} %  {described(name)}" for name, count in counts.items()]


def summary(counts: Counter[str]) -> str:
    """The same as a sentence."""
    dropped = ", ".join(f"{name} {count:,}" for name, count in in_order(counts).items() if name != KEPT)
    return f"{counts[KEPT]:,} of {counts.total():,} completions kept{f'; dropped: {dropped}' if dropped else ''}."


def nothing_kept(counts: Counter[str]) -> str:
    """Why there is no row, by filter, and what to loosen first."""
    most = max(in_order(counts), key=lambda name: counts[name])
    what, fix = FILTERS[most]
    return f"There is no dataset: {summary(counts)} Most were dropped by {most} ({what}): {fix}"
