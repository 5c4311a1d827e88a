"""How rewards become advantages as one choice: `algorithm.advantage`, `algorithm.scale` and `algorithm.std_ddof`.

A variant's value is the three with slashes between them. The usual ones are offered; any other that a config may hold
is shown where it came with one, so that nothing is lost.
"""

from dataclasses import dataclass

from grpo_core.config.algorithm import AlgorithmConfig
from grpo_core.config.conflicts import SCALES

DEFAULT = "group/group_std/0"

_NAMES = {
    ("group", "group_std"): "z-score in the group{std}",
    ("group", "batch_std"): "group mean, batch std{std} (Lite-PPO)",
    ("group", "none"): "mean only (Dr. GRPO)",
    ("rloo", "none"): "leave one out (RLOO)",
    ("maxrl", "none"): "divided by the group's mean (MaxRL)",
    ("pass_at_k", "group_std"): "best of k (Pass@k)",
    ("pass_at_k", "none"): "best of k, not divided (Pass@k)",
    ("reinforce", "none"): "the reward itself (REINFORCE)",
    ("reinforce_baseline", "none"): "minus the step's mean (REINFORCE with baseline)",
    ("reinforce_baseline", "batch_std"): "z-score over the step{std} (REINFORCE with baseline)",
    ("reinforce_pp", "batch_std"): "REINFORCE++{std}",
    ("reinforce_pp_baseline", "batch_std"): "REINFORCE++ with the group's mean{std}",
    ("gae", "batch_std"): "critic and GAE, whitened{std} (PPO)",
    ("gae", "none"): "critic and GAE, not whitened (PPO)",
}
_SHORT = {
    ("group", "batch_std"): "batch std",
    ("group", "none"): "mean only",
    ("rloo", "none"): "RLOO",
    ("maxrl", "none"): "MaxRL",
    ("reinforce_pp", "batch_std"): "REINFORCE++",
    ("reinforce_pp_baseline", "batch_std"): "REINFORCE++ baseline",
}
"""For a column of a table; by the estimator alone where that says it."""
_SHORT_ESTIMATORS = {
    "pass_at_k": "Pass@k",
    "reinforce": "REINFORCE",
    "reinforce_baseline": "REINFORCE baseline",
    "gae": "PPO",
}
_HELP = {
    ("group", "group_std"): "GRPO: each reward minus its group's mean, divided by the group's {std}.",
    ("group", "batch_std"): "Lite-PPO: minus the group's mean, divided by the whole step's {std}, which is steadier "
    "when groups agree.",
    ("group", "none"): "Dr. GRPO drops the division: with it, very easy and very hard problems weigh too much.",
    ("rloo", "none"): "RLOO: each reward minus the mean of the others in its group. Not divided.",
    (
        "maxrl",
        "none",
    ): "MaxRL: minus the group's mean and divided by it, so that a right answer counts more where it is "
    "rare. For rewards of 0 and 1.",
    ("pass_at_k", "group_std"): "What a completion adds to the best of k of its group, divided by the spread of that "
    "best. k stands under Advantage.",
    ("pass_at_k", "none"): "What a completion adds to the best of k of its group. k stands under Advantage.",
    ("reinforce", "none"): "Compared with nothing, so groups of equal rewards teach too. Noisy.",
    ("reinforce_baseline", "none"): "Each reward minus the mean of the whole step. Not divided.",
    ("reinforce_baseline", "batch_std"): "Each reward minus the mean of the whole step, divided by the step's {std}.",
    ("reinforce_pp", "batch_std"): "Minus the mean and divided by the {std} over all tokens of the step, so that long "
    "completions count more.",
    ("reinforce_pp_baseline", "batch_std"): "Minus the group's mean, then divided by the {std} over all tokens of the "
    "step.",
    (
        "gae",
        "batch_std",
    ): "PPO: a learned critic beside the policy, one more model in memory; its advantages are divided "
    "by their {std} over all tokens of the step.",
    ("gae", "none"): "PPO: a learned critic beside the policy, one more model in memory.",
}


@dataclass(frozen=True)
class Variant:
    value: str
    advantage: str
    scale: str
    ddof: str

    @property
    def divides(self) -> bool:
        """Whether a standard deviation whose ddof matters is divided by."""
        return self.scale != "none" and self.advantage != "pass_at_k"

    @property
    def label(self) -> str:
        which = "population" if self.ddof == "0" else "sample"
        name = _NAMES[self.advantage, self.scale].format(std=f", {which} std")
        return name if self.divides or self.ddof == "0" else f"{name}, sample std for display"

    @property
    def short(self) -> str:
        if (self.advantage, self.scale) == ("group", "group_std"):
            return "population std" if self.ddof == "0" else "sample std"
        return _SHORT.get((self.advantage, self.scale)) or _SHORT_ESTIMATORS[self.advantage]

    @property
    def help(self) -> str:
        """What it does, and which standard deviation it means."""
        std = "population standard deviation (divide by n)"
        if self.ddof == "1":
            std = "sample standard deviation (divide by n\N{MINUS SIGN}1)"
        return _HELP[self.advantage, self.scale].format(std=std)


def _all() -> dict[str, Variant]:
    found = (
        Variant(f"{advantage}/{scale}/{ddof}", advantage, scale, ddof)
        for advantage, scales in SCALES.items()
        for scale in scales
        for ddof in ("0", "1")
    )
    return {variant.value: variant for variant in found}


ALL = _all()
USUAL: dict[str, tuple[str, ...]] = {
    "Compared with the group": (
        DEFAULT,
        "group/group_std/1",
        "group/batch_std/0",
        "group/none/0",
        "rloo/none/0",
        "maxrl/none/0",
        "pass_at_k/group_std/0",
        "reinforce_pp_baseline/batch_std/0",
    ),
    "Compared with the step, or with nothing": (
        "reinforce_pp/batch_std/0",
        "reinforce_baseline/none/0",
        "reinforce_baseline/batch_std/0",
        "reinforce/none/0",
    ),
    "Compared with a learned critic": ("gae/batch_std/0",),
}
"""Headings and the variants offered under them."""


def offered(current: str) -> list[tuple[str, Variant]]:
    """(heading, variant) of what a form offers while `current` stands in it."""
    usual = [(heading, ALL[value]) for heading, values in USUAL.items() for value in values]
    if current in ALL and current not in [variant.value for _, variant in usual]:
        usual.append(("Less usual", ALL[current]))
    return usual


def variant_of(algorithm: AlgorithmConfig) -> Variant:
    return ALL[f"{algorithm.advantage}/{algorithm.scale}/{algorithm.std_ddof}"]


def variant_in_words(algorithm: AlgorithmConfig) -> str:
    """The choice with what the other settings make of it."""
    if algorithm.multi_objective_aggregation == "normalize_then_sum":
        which = "population" if algorithm.std_ddof == 0 else "sample"
        return f"z-score of each reward by itself, {which} std (GDPO)"
    label = variant_of(algorithm).label
    if algorithm.pass_k is not None:
        label = label.replace("best of k", f"best of {algorithm.pass_k}")
    return f"{label}, per step (process)" if algorithm.supervision == "process" else label
