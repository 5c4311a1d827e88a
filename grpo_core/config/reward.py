"""The reward of a run: named components, what happens when one cannot score, and how long it may take.

Loads no torch. A component's own parameters are checked by its kind (grpo_core/rewards/).
"""

from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, SerializerFunctionWrapHandler, model_serializer, model_validator
from pydantic_core import PydanticKnownError

from grpo_core.errors import Conflict
from grpo_core.specs.fields import Count, CountOrZero, Part, Positive


def reward_kinds() -> Mapping[str, Any]:
    """Every kind (rewards.base.Kind) by name. Kinds are above configs, which they read, so they are looked up when a
    config is checked."""
    kinds: Mapping[str, Any] = import_module("grpo_core.rewards.registry").KINDS
    return kinds


def _known(name: str) -> str:
    if name not in reward_kinds():
        raise PydanticKnownError("literal_error", {"expected": ", ".join(map(repr, reward_kinds()))})
    return name


RewardKind = Annotated[
    str, AfterValidator(_known), Field(json_schema_extra=lambda schema: schema.update(enum=[*reward_kinds()]))
]
ErrorPolicy = Literal["mask", "zero", "fail"]


class RewardComponent(Part):
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]
    """Short name, unique in the reward: it names the metric `rewards/<name>/mean` and the sample's column."""
    kind: RewardKind
    """What is checked; every kind has a page with its parameters in docs/rewards."""
    weight: float = 1.0
    """Factor of this component in the reward's sum."""
    params: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of the kind, checked against the kind's own parameters when the reward is built."""


class RewardLimits(Part):
    deadline_seconds: Positive = 30.0
    """Longest that one component may take over one sample; past it the work is killed. Kinds that are pure rules of the
    text need no deadline."""
    retries: CountOrZero = 2
    """How often a sample is tried again after an error that is not its own: a sandbox that did not start, a judge that
    could not be reached. Then it is masked and counted, whatever `on_error` says but fail."""
    workers: Count = 4
    """Samples scored side by side by kinds that run a process or wait for a server."""


class RewardConfig(Part):
    components: Annotated[tuple[RewardComponent, ...], Field(min_length=1)]
    """The weighted sum that scores a completion."""
    on_error: ErrorPolicy = "mask"
    """A sample whose reward raised: mask leaves it out of the group, zero pays 0, fail ends the run. An error that is
    not the sample's own (sandbox, judge's server, budget) is never paid 0: with zero it is masked."""
    limits: RewardLimits = RewardLimits()
    """How long scoring may take, and what is tried again."""

    @model_validator(mode="after")
    def _names_unique(self) -> Self:
        names = [component.name for component in self.components]
        if twice := sorted(name for name, times in Counter(names).items() if times > 1):
            raise Conflict("component_given_twice", f"component names must be unique; given twice: {', '.join(twice)}")
        if all(component.weight == 0 for component in self.components):
            raise Conflict("all_weights_zero", "at least one component needs a weight other than 0")
        return self

    @model_serializer(mode="wrap")
    def _without_usual_limits(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Default limits are left out, so that a reward has the digest it had before limits existed."""
        fields: dict[str, Any] = whole(self)
        if self.limits == RewardLimits():
            fields.pop("limits", None)
        return fields
