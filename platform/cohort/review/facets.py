"""What of a sample has few values, packed into the bits of one number, so that one GROUP BY counts all of it; and the
order of its components' values.

The layout is stored: a facet keeps its place, and new values are added at the end of its list.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import get_args

from django.db.models import Count, F, Q, QuerySet
from django.db.models.lookups import Exact

from cohort.review.models import Sample
from cohort.runs.imported_reward import ImportedReward
from grpo_core.config.reward import RewardConfig
from grpo_core.records import types as records
from grpo_core.rewards.signal import OVERLONG


@dataclass(frozen=True)
class Facet:
    name: str
    """As the filter's field."""
    shift: int
    bits: int
    values: tuple[str, ...]
    """By what is stored; "" where there is none."""

    def __post_init__(self) -> None:
        assert len(self.values) <= 1 << self.bits, self.name

    def packed(self, value: str) -> int:
        return self.values.index(value) << self.shift

    @property
    def mask(self) -> int:
        return ((1 << self.bits) - 1) << self.shift

    def read(self, packed: int) -> str:
        return self.values[(packed & self.mask) >> self.shift]

    def has(self, *values: str) -> Q:
        """Samples with one of the values."""
        condition = Q()
        for value in values:
            condition |= Q(Exact(F("facets").bitand(self.mask), self.packed(value)))
        return condition


FINISH = Facet("finish", 0, 2, (*get_args(records.FinishReason), ""))
MASKED = Facet("masked", 2, 3, ("", *get_args(records.MaskCause)))
ERROR = Facet("error", 5, 4, ("", *get_args(records.ErrorClass), "unknown"))
"""Class of the first component's error; `unknown` for one whose record names none."""
VERIFIER = Facet("verifier", 9, 2, ("", "right", "wrong"))
"""By the component that means right; "" where the sample is masked or the component cannot say."""
DISCARDED = Facet("discarded", 11, 3, ("", *get_args(records.Discard)))
FLAGS = {name: Facet(name, 16 + place, 1, ("", name)) for place, name in enumerate(get_args(records.SampleFlag))}
"""One bit each, from the sixteenth on: a sample may have several."""
FACETS = (FINISH, MASKED, ERROR, VERIFIER, DISCARDED, *FLAGS.values())


def facet_counts(samples: QuerySet[Sample]) -> dict[str, Counter[str]]:
    """Facet → how many of the samples have each value. One query, which reads an index alone."""
    counts: dict[str, Counter[str]] = {facet.name: Counter() for facet in FACETS}
    for packed, count in samples.order_by().values_list("facets").annotate(count=Count("pk")):
        for facet in FACETS:
            counts[facet.name][facet.read(packed)] += count
    return counts


class Packer:
    """What a run's samples are stored with next to their record, by the run's reward."""

    def __init__(self, reward: RewardConfig) -> None:
        self._reward = reward
        self._order = component_order(reward)
        self._success: dict[tuple[str, ...], str] = {}

    def values(self, components: Mapping[str, records.ComponentScore]) -> list[float | None]:
        """In the order of components, up to the last that has one."""
        values = [score.value if (score := components.get(name)) is not None else None for name in self._order]
        while values and values[-1] is None:
            values.pop()
        return values

    def facets(self, sample: records.Sample, discarded: str) -> int:
        packed = _FINISH[sample.finish_reason] | _MASKED[sample.mask_cause or ""] | _DISCARDED[discarded]
        for flag in sample.flags:
            packed |= _FLAGS[flag]
        components = sample.components
        if not components:
            return packed
        for score in components.values():
            if score.error is not None or score.error_class is not None:
                packed |= _ERROR[score.error_class or "unknown"]
                break
        if sample.mask_cause is None and (passed := components[self._success_of(components)].passed) is not None:
            packed |= _VERIFIER["right" if passed else "wrong"]
        return packed

    def _success_of(self, components: Mapping[str, records.ComponentScore]) -> str:
        names = tuple(components)
        if names not in self._success:
            self._success[names] = self._reward.success_of(names)
        return self._success[names]


def component_order(reward: RewardConfig | ImportedReward) -> tuple[str, ...]:
    """Names of what `Sample.component_values` holds."""
    names = tuple(component.name for component in reward.components)
    return names if isinstance(reward, ImportedReward) else (*names, OVERLONG)


@lru_cache(maxsize=100)
def packer_of(reward: str) -> Packer:
    """Of a run's reward as JSON text."""
    return Packer(RewardConfig.model_validate_json(reward))


def _by_value(facet: Facet) -> dict[str, int]:
    return {value: facet.packed(value) for value in facet.values}


_FINISH, _MASKED, _ERROR, _VERIFIER, _DISCARDED = map(_by_value, (FINISH, MASKED, ERROR, VERIFIER, DISCARDED))
_FLAGS = {name: facet.packed(name) for name, facet in FLAGS.items()}
