"""The numbers of one step, from its groups. docs/metrics.md defines each; names follow TRL where the meaning is equal.

A metric without meaning in a step is absent, never 0 or NaN. Loads no torch.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from grpo_core.config.algorithm import AlgorithmConfig
from grpo_core.monitors.figures import LengthCorrelation, repeated, variance_shares
from grpo_core.monitors.history import History
from grpo_core.records.types import Discard, ErrorClass, Group, MaskCause, Sample
from grpo_core.rewards.base import MISSING

ENERGY = "energy_joules"
KEPT, DROPPED, WITH_ROWS = "kept", "dropped_", "problems_kept"
"""Sums of a run of kind sample: completions kept, those that each filter dropped, problems with a row."""


@dataclass
class Counts:
    """What a run has added up so far; a checkpoint carries it on."""

    sums: Counter[str] = field(default_factory=Counter)
    """For the run's outcome."""
    newest: Counter[str] = field(default_factory=Counter)
    """What the newest step added to them."""
    informative: int = 0
    """Groups that gave some advantage other than 0, which equal rewards may (REINFORCE, process rewards)."""
    steps: int = 0
    """Whole and recorded."""
    held: dict[str, int] = field(default_factory=dict)
    """Code of a cause of the diagnosis → newest step in which it held."""
    history: History = field(default_factory=History)
    """The steps that monitors look at."""
    seconds_before: float = 0.0
    """Wall time of earlier processes, up to the checkpoint that this one resumed from."""
    began: float = field(default_factory=time.perf_counter)

    def resume(self, steps: int, seconds: float, *, informative: int, held: dict[str, int], history: History) -> None:
        """Continue from a checkpoint's."""
        self.history = history
        self.steps, self.seconds_before, self.informative = steps, seconds, informative
        self.held.update(held)

    def add(self, newest: Counter[str]) -> None:
        """What `step_sums` gave for one step."""
        self.newest = newest
        self.sums.update(newest)

    def add_masked(self, cause: MaskCause, count: int) -> None:
        """Completions that an update left out, beyond those that were left out before it."""
        self.sums["masked"] += count
        self.sums[f"masked_{cause}"] += count

    def add_filtered(self, counts: Counter[str], *, problems: int) -> None:
        """What `data.rejection.Choice` counted in one step, and how many of its problems have a row."""
        self.sums.update({name if name == KEPT else f"{DROPPED}{name}": count for name, count in counts.items()})
        self.sums[WITH_ROWS] += problems

    def filtered(self) -> Counter[str]:
        """The sum of what `add_filtered` was given."""
        dropped = {name: count for name, count in self.sums.items() if name.startswith(DROPPED)}
        return Counter({KEPT: self.sums[KEPT]}) + Counter(
            {name.removeprefix(DROPPED): count for name, count in dropped.items()}
        )

    def add_discarded(self, reasons: Sequence[Discard]) -> None:
        """Groups that dynamic sampling left out."""
        self.sums["groups_discarded"] += len(reasons)
        for reason in reasons:
            self.sums[f"discarded_{reason}"] += 1

    def totals(self) -> dict[str, float]:
        """The sums, as the outcome has them."""
        names = ("samples", "tokens", "completion_tokens", "groups", "groups_mixed", "groups_phantom")
        more = ("groups_all_equal", "groups_unscored", "groups_all_right", "groups_all_wrong", "groups_discarded")
        others = ("masked", "truncated", "reward_errors", "judged", "right", "no_answer")
        reasons = [f"discarded_{reason}" for reason in get_args(Discard)]
        causes = [f"masked_{cause}" for cause in get_args(MaskCause)]
        energy = [ENERGY] if ENERGY in self.sums else []  # on a machine without a meter it is unknown, not 0
        errors = [name for kind in get_args(ErrorClass) if (name := f"reward_errors_{kind}") in self.sums]
        filters = [name for name in self.sums if name in (KEPT, WITH_ROWS) or name.startswith(DROPPED)]
        every = (*names, *more, *others, *reasons, *causes, *errors, *filters, *energy)
        return {name: float(self.sums[name]) for name in every}

    def seconds(self) -> float:
        """Wall time that went into the run."""
        return self.seconds_before + time.perf_counter() - self.began


Success = Callable[[Collection[str]], str]
"""Of a row's components the one that means right."""


def step_sums(groups: Sequence[Group], *, success: Success, tokens: int) -> Counter[str]:
    """What a step adds to the run's sums: of completions, of groups by signal and verdict, of errors by class."""
    sums: Counter[str] = Counter(groups=len(groups), tokens=tokens)
    for group in groups:
        sums[f"groups_{group.signal}"] += 1
        if group.signal != "mixed" and (verdict := _verdict(group, success)) in ("all_right", "all_wrong"):
            sums[f"groups_{verdict}"] += 1
        for sample in group.samples:
            own = sample.components[success(sample.components)]
            sums["samples"] += 1
            sums["completion_tokens"] += sample.tokens
            sums["truncated"] += sample.finish_reason == "length"
            sums["reward_errors"] += _failed(sample)
            sums["judged"] += own.passed is not None
            sums["right"] += own.passed is True
            sums["no_answer"] += own.detail in MISSING.values()
            if sample.mask_cause not in (None, "importance"):  # that one is counted separately, after the update
                sums["masked"] += 1
                sums[f"masked_{sample.mask_cause}"] += 1
        for kind, count in _by_class(group.samples).items():
            sums[f"reward_errors_{kind}"] += count
    return sums


def group_metrics(groups: Sequence[Group], *, success: Success, algorithm: AlgorithmConfig) -> dict[str, float]:
    """Rewards, group shares and lengths of one step's groups."""
    samples = [sample for group in groups for sample in group.samples]
    metrics: dict[str, float] = {}
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    if rewards:
        metrics["reward"] = math.fsum(rewards) / len(rewards)
    if len(rewards) > 1:
        metrics["reward_std"] = _std(rewards, algorithm.std_ddof)
    for name in dict.fromkeys(name for sample in samples for name in sample.components):
        metrics |= _component_metrics(name, samples)
    stds = [group.reward_std for group in groups if group.reward_std is not None]
    if stds:
        metrics["reward_group_std"] = math.fsum(stds) / len(stds)
    metrics["frac_informative"] = sum(algorithm.learns_from(group.signal) for group in groups) / len(groups)
    metrics["frac_phantom"] = sum(group.signal == "phantom" for group in groups) / len(groups)
    dead = [_verdict(group, success) for group in groups if group.signal in ("all_equal", "unscored")]
    metrics["frac_reward_zero_std"] = len(dead) / len(groups)
    for kind in ("all_right", "all_wrong"):
        metrics[f"frac_reward_zero_std/{kind}"] = dead.count(kind) / len(groups)
    metrics["frac_reward_zero_std/other"] = sum(verdict in ("mixed", None) for verdict in dead) / len(groups)
    shares = Counter(verdict for group in groups if (verdict := _verdict(group, success)) is not None)
    for verdict in ("all_right", "all_wrong", "mixed"):
        metrics[f"groups/{verdict}"] = shares[verdict] / len(groups)

    lengths = [sample.tokens for sample in samples]
    metrics["completions/mean_length"] = sum(lengths) / len(lengths)
    metrics["completions/min_length"] = float(min(lengths))
    metrics["completions/max_length"] = float(max(lengths))
    for name, passed in (("right", True), ("wrong", False)):
        judged = [s.tokens for s in samples if s.components[success(s.components)].passed is passed]
        if judged:
            metrics[f"completions/mean_length/{name}"] = sum(judged) / len(judged)
    metrics["completions/clipped_ratio"] = sum(s.finish_reason == "length" for s in samples) / len(samples)
    metrics["reward_errors"] = float(sum(_failed(sample) for sample in samples))
    metrics["frac_unscored"] = metrics["reward_errors"] / len(samples)
    metrics |= {f"reward_errors/{kind}": float(count) for kind, count in _by_class(samples).items()}
    for cause in ("reward_error", "truncated"):
        metrics[f"masked/{cause}"] = float(sum(sample.mask_cause == cause for sample in samples))
    return metrics


def monitor_metrics(groups: Sequence[Group], *, success: Success, weights: Mapping[str, float]) -> dict[str, float]:
    """What only monitors need of one step's groups (docs/monitors.md): shares of right and repeated completions, of the
    variance by component, and the correlation of reward and length. `weights`: of each component of the reward."""
    samples = [sample for group in groups for sample in group.samples]
    own = [sample.components[success(sample.components)] for sample in samples]
    judged = [score.passed for score in own if score.passed is not None]
    metrics = {"completions/right": sum(judged) / len(judged)} if judged else {}
    metrics["completions/no_answer"] = sum(score.detail in MISSING.values() for score in own) / len(own)
    lengths = LengthCorrelation()
    equal, wrong = 0, 0
    for group in groups:
        lengths.add([sample.reward for sample in group.samples], [sample.tokens for sample in group.samples])
        equal += repeated(sample.completion for sample in group.samples)
        wrong += repeated(
            sample.completion
            for sample in group.samples
            if sample.components[success(sample.components)].passed is not True
        )
    metrics |= {"completions/duplicates": equal / len(samples), "completions/duplicates/wrong": wrong / len(samples)}
    if lengths.rho is not None:
        metrics["rewards/length_correlation"] = lengths.rho
    if len(weights) > 1:
        scored = ([sample for sample in group.samples if sample.reward is not None] for group in groups)
        parts = [[_weighted(sample, weights) for sample in group] for group in scored]
        shares = variance_shares(parts)
        metrics |= {f"rewards/{name}/variance_share": share for name, share in shares.items()}
    return metrics


def _weighted(sample: Sample, weights: Mapping[str, float]) -> dict[str, float]:
    """What each component adds to the reward."""
    return {name: weights[name] * (score.value or 0.0) for name, score in sample.components.items() if name in weights}


def mean_entropy(entropies: Sequence[float | None], lengths: Sequence[int]) -> float | None:
    """Mean over tokens, from each completion's own mean; None when an engine did not report one."""
    known = [(entropy, length) for entropy, length in zip(entropies, lengths, strict=True) if entropy is not None]
    if len(known) < len(lengths):
        return None
    return math.fsum(entropy * length for entropy, length in known) / sum(lengths)


def _component_metrics(name: str, samples: Sequence[Sample]) -> dict[str, float]:
    """Of the samples that the component is for: its mean over those that it could score, and the share that it could
    not. `share`: of all samples it is for so many, where that is not all."""
    scores = [sample.components[name] for sample in samples if name in sample.components]
    values = [score.value for score in scores if score.value is not None]
    metrics = {f"rewards/{name}/mean": math.fsum(values) / len(values)} if values else {}
    if len(values) < len(scores):
        metrics[f"rewards/{name}/unscored"] = 1 - len(values) / len(scores)
    if len(scores) < len(samples):
        metrics[f"rewards/{name}/share"] = len(scores) / len(samples)
    return metrics


def _verdict(group: Group, success: Success) -> str | None:
    """all_right, all_wrong or mixed by the success component; None when no sample of the group was judged."""
    name = success(group.samples[0].components)
    passed = [p for sample in group.samples if (p := sample.components[name].passed) is not None]
    if not passed:
        return None
    return "all_right" if all(passed) else "mixed" if any(passed) else "all_wrong"


def _failed(sample: Sample) -> bool:
    return any(component.error is not None for component in sample.components.values())


def _by_class(samples: Sequence[Sample]) -> Counter[str]:
    """How many samples have each class of error. Old records have no class."""
    classes = ({component.error_class for component in sample.components.values()} - {None} for sample in samples)
    return Counter(kind for kinds in classes for kind in sorted(map(str, kinds)))


def _std(values: Sequence[float], ddof: int) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - ddof))
