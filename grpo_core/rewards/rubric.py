"""A rubric says what a completion is paid: the weighted sum of its components, each by its kind.

Checks every component's parameters when it is built, so that a wrong one is found before a model is loaded. It holds
nothing open: `Runner` scores with it.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import rfc8785
from pydantic import JsonValue, ValidationError

from grpo_core.config.messages import field_problems
from grpo_core.config.reward import RewardComponent, RewardConfig
from grpo_core.data.problem import Problem
from grpo_core.errors import ConfigError, DataError, FieldProblem, RewardError
from grpo_core.records.types import INFRASTRUCTURE_ERRORS, ComponentScore
from grpo_core.rewards.base import Kind, Params
from grpo_core.rewards.registry import KINDS

LARGEST = 1e9
"""A weighted value beyond this is an error, not a reward: its square would swamp the group's standard deviation."""


@dataclass(frozen=True, slots=True)
class Scored:
    """What a completion earned. `reward` is None when a component could not score it and `on_error` is mask, or the
    error was not the sample's own."""

    reward: float | None
    components: dict[str, ComponentScore]


@dataclass(frozen=True)
class RubricPart:
    component: RewardComponent
    kind: Kind
    params: Params


class Rubric:
    """The reward of a run, checked."""

    def __init__(self, config: RewardConfig) -> None:
        """Raises ConfigError listing every wrong parameter as `reward.components.<n>.params.<name>`."""
        self.config = config
        problems: list[FieldProblem] = []
        parts: list[RubricPart] = []
        for index, component in enumerate(config.components):
            kind, path = KINDS[component.kind], f"reward.components.{index}.params"
            try:
                part = RubricPart(component, kind, kind.params.model_validate(component.params))
            except ValidationError as error:
                problems += field_problems(error, prefix=path, model=kind.params)
            else:
                parts.append(part)
                problems += [FieldProblem(f"{path}.{name}", fault) for name, fault in kind.check(part.params)]
            problems += _not_canonical(component.params, path)
        if problems:
            raise ConfigError.listing("the reward's parameters are not valid", problems)
        self.parts = tuple(parts)

    @property
    def digest(self) -> str:
        """SHA-256 of the reward's canonical JSON (RFC 8785), as hex: the name of exactly this reward."""
        return hashlib.sha256(rfc8785.dumps(self.config.model_dump(mode="json"))).hexdigest()

    @property
    def needs_sandbox(self) -> bool:
        return any(part.kind.mode == "sandbox" for part in self.parts)

    @property
    def rules_alone(self) -> bool:
        """Every component is a rule of our own in time linear in the text: any process may score with it."""
        return all(part.kind.mode == "inline" for part in self.parts)

    @property
    def columns(self) -> dict[str, str]:
        """{field that each problem must have: name of the component that reads it}."""
        return {column: part.component.name for part in self.parts for column in part.kind.columns(part.params)}

    def check_problems(self, problems: Sequence[Problem]) -> None:
        """Raises DataError naming the first problem that lacks what a component reads."""
        required = self.columns
        for problem in problems if required else ():
            for column in sorted(required.keys() - problem.meta.keys()):
                there = ", ".join(["prompt", "answer", *problem.meta])
                raise DataError(
                    f"problem {problem.id} has no {column!r}, which the reward component {required[column]!r} reads; "
                    f"it has {there}. Add the field to every line of the dataset, or choose another reward"
                )

    def combine(self, components: Mapping[str, ComponentScore], *, of: str) -> Scored:
        """The reward of one sample, of the problem with the id `of`. Raises RewardError where a component could not
        score it and `on_error` is fail."""
        scores = {part.component.name: _bounded(components[part.component.name], part) for part in self.parts}
        failed = {name: score for name, score in scores.items() if score.error is not None}
        if failed:
            if self.config.on_error == "fail":
                name, failure = next(iter(failed.items()))
                raise RewardError(f"reward component {name!r} failed on problem {of}: {failure.error}")
            own = all(score.error_class not in INFRASTRUCTURE_ERRORS for score in failed.values())
            return Scored(0.0 if self.config.on_error == "zero" and own else None, scores)
        values = [part.component.weight * cast("float", scores[part.component.name].value) for part in self.parts]
        return Scored(math.fsum(values), scores)


def _bounded(score: ComponentScore, part: RubricPart) -> ComponentScore:
    """The score, or an error where its value is no number that a reward can hold."""
    if score.error is not None or (score.value is not None and abs(part.component.weight * score.value) <= LARGEST):
        return score
    error = f"{part.component.kind} gave {score.value}, which is not a number up to {LARGEST:g}"
    return score.model_copy(update={"value": None, "passed": None, "error": error, "error_class": "value"})


def _not_canonical(params: dict[str, JsonValue], path: str) -> Iterator[FieldProblem]:
    """Values that the digest's canonical JSON cannot hold, such as a whole number beyond 2⁵³."""
    for name, value in params.items():
        try:
            rfc8785.dumps(value)
        except rfc8785.CanonicalizationError as error:
            yield FieldProblem(
                f"{path}.{name}", f"{error}; write a large number as a decimal, such as 1.0e+17", "not_json"
            )
