"""The reward of a run: named components, what happens when one cannot score, and how long it may take.

Loads no torch. A component's own parameters are checked by its kind (grpo_core/rewards/).
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
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
LARGEST_REWARD = 1e9
"""A weighted value beyond this is an error, not a reward: its square would swamp the group's standard deviation."""
ErrorPolicy = Literal["mask", "zero", "fail"]


def as_text(value: Any) -> Any:
    """A number or a truth value of YAML or JSON as a row's field is compared: by its text."""
    return value if isinstance(value, str) else json.dumps(value)


class RowFilter(Part):
    column: Annotated[str, Field(min_length=1, max_length=100)]
    """Field of the problem, such as data_source."""
    values: Annotated[tuple[Annotated[str, BeforeValidator(as_text)], ...], Field(min_length=1, max_length=1000)]
    """Its values whose rows are scored; numbers and true or false are compared as text."""

    def takes(self, fields: Mapping[str, Any]) -> bool:
        return self.column in fields and as_text(fields[self.column]) in self.values


class RewardComponent(Part):
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]
    """Short name, unique in the reward: it names the metric `rewards/<name>/mean` and the sample's column."""
    kind: RewardKind
    """What is checked; every kind has a page with its parameters in docs/rewards."""
    weight: Annotated[float, Field(ge=-LARGEST_REWARD, le=LARGEST_REWARD)] = 1.0
    """Factor of this component in the reward's sum."""
    params: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of the kind, checked against the kind's own parameters when the reward is built."""
    only: RowFilter | None = None
    """The rows that it scores, by a column, such as `{column: data_source, values: [gsm8k]}`; empty: all. In another
    row's reward it has no part, and that row is not in its metrics."""

    @model_serializer(mode="wrap")
    def _without_no_filter(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The digest of a reward for all rows does not depend on there being filters."""
        fields: dict[str, Any] = whole(self)
        if self.only is None:
            fields.pop("only", None)
        return fields


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
    """A sample whose reward raised: mask leaves it out of the group, zero scores 0, fail ends the run. An error that is
    not the sample's own (sandbox, judge's server, budget) is never scored 0: with zero it is masked."""
    limits: RewardLimits = RewardLimits()
    """How long scoring may take, and what is tried again."""
    success: str | None = Field(default=None, title="Component that means right")
    """Name of the component that means right; the others shape. Its verdict is the accuracy of held-out problems, and
    with algorithm.signal_gate: success a group in which it does not vary carries no signal. Empty takes the heaviest
    component."""

    def success_of(self, names: Collection[str]) -> str:
        """Of the components that score a row the one that means right: `success` if it is there, else the heaviest
        that is for such rows alone, else the heaviest."""
        there = [component for component in self.components if component.name in names]
        filtered = [component for component in there if component.only is not None]
        named = [component for component in there if component.name == self.success]
        return max(named or filtered or there, key=lambda component: component.weight).name

    @model_validator(mode="after")
    def _names_unique(self) -> Self:
        names = [component.name for component in self.components]
        if twice := sorted(name for name, times in Counter(names).items() if times > 1):
            raise Conflict("component_given_twice", f"component names must be unique; given twice: {', '.join(twice)}")
        if all(component.weight == 0 for component in self.components):
            raise Conflict("all_weights_zero", "at least one component needs a weight other than 0")
        if self.success is not None and self.success not in names:
            raise Conflict(
                "unknown_success",
                f"{self.success!r} is not a component of the reward; there are {', '.join(names)}",
                field="success",
            )
        return self

    @property
    def success_component(self) -> str:
        """Name of the component that means right: `success`, else the heaviest, of equal ones the first."""
        return self.success or max(self.components, key=lambda component: component.weight).name

    @model_serializer(mode="wrap")
    def _without_usual_limits(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What only restates the defaults is left out: a reward has one digest, however much of it is written."""
        fields: dict[str, Any] = whole(self)
        if self.limits == RewardLimits():
            fields.pop("limits", None)
        if self.success is None:
            fields.pop("success", None)
        return fields
