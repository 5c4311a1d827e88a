"""How rewards become advantages as one choice: `algorithm.advantage`, `algorithm.scale` and `algorithm.std_ddof`.

A variant's value is the three with slashes between them. The usual ones are offered; any other that a config may hold
is shown where it came with one, so that nothing is lost. The words are the estimators' own.
"""

from dataclasses import dataclass

from grpo_core.advantages.base import Estimator, Scale, Scaling
from grpo_core.advantages.settings import ESTIMATORS
from grpo_core.config.algorithm import AlgorithmConfig

DEFAULT = "group/group_std/0"
_HEADINGS = {
    "group": "Compared with the group",
    "step": "Compared with the step, or with nothing",
    "critic": "Compared with a learned critic",
}


@dataclass(frozen=True)
class Variant:
    estimator: Estimator
    scale: Scale
    ddof: int

    @property
    def value(self) -> str:
        return f"{self.estimator.name}/{self.scale}/{self.ddof}"

    @property
    def scaling(self) -> Scaling:
        return self.estimator.scales[self.scale]

    @property
    def label(self) -> str:
        name = self.scaling.label.format(std=f", {self._which} std")
        return name if self.scaling.divides or self.ddof == 0 else f"{name}, sample std for display"

    @property
    def short(self) -> str:
        return self.scaling.short.format(std=f"{self._which} std")

    @property
    def help(self) -> str:
        """What it does, and which standard deviation it means."""
        by = "divide by n\N{MINUS SIGN}1" if self.ddof else "divide by n"
        return self.scaling.help.format(std=f"{self._which} standard deviation ({by})")

    @property
    def _which(self) -> str:
        return "sample" if self.ddof else "population"


ALL = {
    variant.value: variant
    for estimator in ESTIMATORS.values()
    for scale in estimator.scales
    for variant in (Variant(estimator, scale, 0), Variant(estimator, scale, 1))
}
USUAL = [
    variant
    for compared_with in _HEADINGS
    for variant in ALL.values()
    if variant.estimator.compared_with == compared_with
    and variant.scaling.usual
    and (variant.ddof == 0 or variant.value == "group/group_std/1")
]
"""Always offered, in the order of the headings."""


def offered(current: str) -> list[tuple[str, Variant]]:
    """(heading, variant) of what a form offers while `current` is selected."""
    usual = [(_HEADINGS[variant.estimator.compared_with], variant) for variant in USUAL]
    if current in ALL and ALL[current] not in USUAL:
        usual.append(("Less usual", ALL[current]))
    return usual


def variant_of(algorithm: AlgorithmConfig) -> Variant:
    return Variant(algorithm.estimator, algorithm.scale, algorithm.std_ddof)


def variant_in_words(algorithm: AlgorithmConfig) -> str:
    """The choice in words, with the other settings that it depends on."""
    label = variant_of(algorithm).label
    return label if algorithm.pass_k is None else label.replace("best of k", f"best of {algorithm.pass_k}")
