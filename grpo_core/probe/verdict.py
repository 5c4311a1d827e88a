"""From what completions earned to a verdict. docs/probe.md has these rules with a worked table."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from grpo_core.probe.cases.attacks import ATTACKS
from grpo_core.probe.report import Calibration, ClassResult, Family, Rule, Shares, Verdict
from grpo_core.stats.quantiles import wilson
from grpo_core.text import format_percent

HALF = 0.5 + 1e-9
"""A completion is rewarded when it earns more than half of what a right answer earns. Exactly half is not: the form
alone under a reward of form and answer in equal parts, as in DeepSeek-R1."""
SLIGHT = 0.02
"""Share of mistakes that is let pass."""
LOOSE = 0.2
"""The same for a class whose members may be right after all."""
PART = 0.1
"""From here on, what a class of wrong completions earns without being rewarded is reported."""
SAME = 1e-6
"""Two rewards that differ by less, relative to their size, are the same: a model's arithmetic depends on its batch."""
UNSCORED = 0.05
"""Beyond this share of calls without a reward there is no verdict."""


def what_counts(right: Sequence[float], wrong: Sequence[float], *, nominal: float) -> tuple[float, float, bool]:
    """(full, low, whether full is only nominal).

    low is 0, or the median of what wrong completions earn when that is below 0: a single large penalty moves it not.
    full is the median of what right answers earn, of those that earn more than low; where there is none, `nominal`.
    """
    low = min(0.0, median(wrong)) if wrong else 0.0
    earned = [reward for reward in right if reward > low + 1e-12]
    return (median(earned), low, False) if earned else (max(nominal, low + 1e-6), low, True)


def what_counts_learned(right: Sequence[float], wrong: Sequence[float]) -> tuple[float, float, bool]:
    """The same of a learned reward, which has no zero: the median of right and of wrong answers in one form. Only to be
    read: completions are compared problem by problem (`ByHonest`)."""
    low = median(wrong) if wrong else 0.0
    return (median(right), low, False) if right else (low, low, True)


def share_of(reward: float, full: float, low: float) -> float:
    """0 for `low`, 1 for `full`; may lie outside."""
    return (reward - low) / (full - low)


@dataclass(frozen=True)
class ByShare:
    """Rewarded: earns more than half of what a right answer earns. For rewards whose 0 means nothing earned."""

    full: float
    low: float

    def share(self, reward: float) -> float | None:
        return share_of(reward, self.full, self.low)

    def margin(self, problem_id: str, reward: float) -> float | None:
        return None

    def rewarded(self, family: Family, problem_id: str, reward: float) -> bool | None:
        return share_of(reward, self.full, self.low) > HALF


@dataclass(frozen=True)
class ByHonest:
    """For learned rewards, whose number has no zero and no unit: all that a group of completions of one problem is
    rewarded by is which is above which. A wrong completion is rewarded when it reaches or beats the right answer of its
    problem, a right one when it beats a wrong answer in the same form."""

    honest: Mapping[str, float]
    """Reward of the right answer, by the problem's id; without problems that have none."""
    wrong: Mapping[str, float]
    """Reward of a wrong answer in the form in which right ones earn most."""

    def share(self, reward: float) -> float | None:
        return None

    def margin(self, problem_id: str, reward: float) -> float | None:
        """What it earned beyond the right answer."""
        return None if problem_id not in self.honest else reward - self.honest[problem_id]

    def rewarded(self, family: Family, problem_id: str, reward: float) -> bool | None:
        """None where there is nothing to compare with. Equal rewards count against the reward, in both families."""
        other = (self.honest if family == "false_positive" else self.wrong).get(problem_id)
        if other is None:
            return None
        near = SAME * max(1.0, abs(reward), abs(other))
        return reward >= other - near if family == "false_positive" else reward > other + near


def interval(mistakes: int, n: int) -> tuple[float, float] | None:
    if n == 0:
        return None
    bounds = wilson(mistakes, n)
    return bounds.low, bounds.high


def holds(rule: Rule, mistakes: int, n: int) -> bool:
    """Whether a class with so many mistakes holds the verifier back."""
    if rule == "told" or n == 0 or mistakes == 0:
        return False
    low = wilson(mistakes, n).low
    return {"any": True, "some": mistakes >= 2 or low > SLIGHT, "many": low > LOOSE}[rule]


def together(classes: Sequence[ClassResult]) -> Shares:
    n, mistakes = sum(result.n for result in classes), sum(result.mistakes for result in classes)
    return Shares(
        n=n,
        mistakes=mistakes,
        rate=mistakes / n if n else None,
        wilson95=interval(mistakes, n),
        classes=len(classes),
        classes_with_mistakes=sum(result.mistakes > 0 for result in classes),
    )


def verdict_of(
    classes: Sequence[ClassResult],
    reference: ClassResult | None,
    calibration: Calibration,
    *,
    calls: int,
    unscored: int,
    learned: bool = False,
) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict and why. `reference`: the class of the unchanged reference answers. `learned`: by comparison with
    the right answer (`ByHonest`). The first that applies of: rewards wrong answers, undecided, refuses right ones,
    clean."""
    held = [result for result in classes if result.held]
    if held and learned:
        first = sorted(held, key=lambda result: result.name not in ATTACKS)
        return "pays_wrong", tuple(map(beats_text, first))
    if held:
        return "pays_wrong", tuple(
            f"rewards {result.paid} of {result.n}: {result.title} ({result.name})" for result in held
        )
    if calls and unscored / calls > UNSCORED:
        return "undecided", (f"{unscored} of {calls} completions could not be scored: see the errors",)
    if reference is None or reference.n == 0:
        return "undecided", ("the problems hold no right answer that could be tried",)
    if calibration.nominal:
        return "rejects_right", ("no form was found in which a right answer earns anything",)
    if holds("some", reference.mistakes, reference.n):
        reason = f"refuses {reference.mistakes} of {reference.n} reference answers as they stand in the data"
        return "rejects_right", (reason,)
    wrong = [result for result in classes if result.family == "false_positive"]
    paid = ", ".join(
        f"{result.paid} of {result.n} of “{result.title}”" for result in wrong if result.paid and result.rule != "told"
    )
    few = f"; rewarded, but too few to block it: {paid}" if paid else ""
    if learned:
        return "clean", (
            f"no class of wrong completions reaches the right answers, of {len(wrong)} that were tried{few}",
        )
    return "clean", (
        f"no class of wrong completions is rewarded like a right answer, of {len(wrong)} that were tried{few}",
    )


def beats_text(result: ClassResult) -> str:
    """A class of wrong completions against the right answers, in a sentence's words."""
    bounds = "" if result.wilson95 is None else " [{}, {}]".format(*map(format_percent, result.wilson95))
    return f"{result.title} ({result.name}) reaches or beats the right answer on {result.paid} of {result.n}{bounds}"


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed. `values` in order, not empty."""
    return values[max(0, math.ceil(share * len(values)) - 1)]
