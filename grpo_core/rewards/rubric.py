"""A rubric says what a completion is paid: the weighted sum of its components, each by its kind.

Checks every component's parameters when it is built, so that a wrong one is found before a model is loaded. It holds
nothing open: `Runner` scores with it.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import rfc8785
from pydantic import JsonValue, ValidationError

from grpo_core.config.messages import field_problems
from grpo_core.config.reward import LARGEST_REWARD, RewardComponent, RewardConfig, as_text
from grpo_core.data.problem import Problem
from grpo_core.errors import ConfigError, DataError, FieldProblem, RewardError
from grpo_core.records.types import INFRASTRUCTURE_ERRORS, ComponentScore
from grpo_core.rewards.base import Kind, Params
from grpo_core.rewards.registry import KINDS
from grpo_core.runtime.watchdog import doing

_LISTED = 5


@dataclass(frozen=True, slots=True)
class Scored:
    """What a completion earned. `reward` is None when a component could not score it and `on_error` is mask, or the
    error was not the sample's own."""

    reward: float | None
    components: dict[str, ComponentScore]
    """Of those components that score its row."""


@dataclass(frozen=True)
class RubricPart:
    component: RewardComponent
    kind: Kind
    params: Params

    def takes(self, problem: Problem) -> bool:
        """Whether it scores completions of this problem."""
        return self.component.only is None or self.component.only.takes(problem.meta)

    @property
    def required(self) -> frozenset[str]:
        """Fields that every problem of the dataset must have."""
        only = self.component.only
        return self.kind.required(self.params) if only is None else frozenset({only.column})


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
        """{field that each problem must have: name of the component that reads it}. What a component reads that scores
        chosen rows only is required of those."""
        return {column: part.component.name for part in self.parts for column in part.required}

    def parts_for(self, problem: Problem) -> tuple[RubricPart, ...]:
        """The components that score the problem's completions."""
        return tuple(part for part in self.parts if part.takes(problem))

    def success_of(self, problem: Problem) -> str:
        """Name of the component that means right for a completion of the problem."""
        return self.config.success_of([part.component.name for part in self.parts_for(problem)])

    def check_problems(self, problems: Sequence[Problem]) -> None:
        """Raises DataError for problems that `readable` would not keep."""
        self.readable(problems, drop=False)

    def readable(self, problems: Sequence[Problem], *, drop: bool) -> tuple[list[Problem], list[tuple[str, str]]]:
        """The problems whose references every component can read, and (id, why not) of the others: all completions of
        such a problem would earn the same. Raises DataError where there are others and they are not to be dropped,
        where none is left, where a problem lacks what a component reads, and where no component is for it."""
        kept, faults = list[Problem](), list[tuple[str, str]]()
        for number, problem in enumerate(problems, start=1):
            doing("reward", f"problem {number:,} of {len(problems):,} checked")
            if not self._has_success(problem):
                raise DataError(self._uncovered(problem, problems))
            parts = self.parts_for(problem)
            for part in parts:
                _require_columns(part, problem)
            read = ((part, part.kind.fault(problem, part.params)) for part in parts)
            own = [f"{part.component.name} ({part.kind.name}): {fault}" for part, fault in read if fault]
            if own:
                faults.append((problem.id, "; ".join(own)))
            else:
                kept.append(problem)
        if faults and not (drop and kept):
            listed = "\n".join(f"  {fault}" for _, fault in faults[:_LISTED])
            advice = "Choose another reward"
            if not drop:
                advice = "Mend them, set data.unreadable: drop, or choose another reward"
            raise DataError(
                f"{len(faults):,} of {len(problems):,} problems have a reference that cannot be compared with, so no "
                f"completion could be right. {advice}. The first:\n{listed}"
            )
        return kept, faults

    def _has_success(self, problem: Problem) -> bool:
        """Whether one of the problem's components says what is right: that of `success`, or one for chosen rows."""
        success = self.config.success_component
        return any(
            part.component.only is not None or part.component.name == success for part in self.parts_for(problem)
        )

    def _uncovered(self, problem: Problem, problems: Sequence[Problem]) -> str:
        columns = sorted({part.component.only.column for part in self.parts if part.component.only is not None})
        held = ", ".join(f"{column} {problem.meta.get(column)!r}" for column in columns)
        there = Counter(as_text(each.meta.get(column)) for column in columns for each in problems)
        listed = ", ".join(f"{value} ({count:,})" for value, count in there.most_common(20))
        return (
            f"no reward component is for the problem {problem.id} with {held}. The dataset's values are: {listed}. Add "
            "the value to a component's only.values, or take such rows out"
        )

    def combine(self, components: Mapping[str, ComponentScore], *, of: str) -> Scored:
        """The reward of one sample, of the problem with the id `of`, from the scores of those components that are for
        it. Raises RewardError where one could not score it and `on_error` is fail."""
        parts = [part for part in self.parts if part.component.name in components]
        scores = {part.component.name: _bounded(components[part.component.name], part) for part in parts}
        failed = {name: score for name, score in scores.items() if score.error is not None}
        if failed:
            if self.config.on_error == "fail":
                name, failure = next(iter(failed.items()))
                raise RewardError(f"reward component {name!r} failed on problem {of}: {failure.error}")
            own = all(score.error_class not in INFRASTRUCTURE_ERRORS for score in failed.values())
            return Scored(0.0 if self.config.on_error == "zero" and own else None, scores)
        values = [part.component.weight * cast("float", scores[part.component.name].value) for part in parts]
        return Scored(math.fsum(values), scores)


def _require_columns(part: RubricPart, problem: Problem) -> None:
    for column in sorted(part.kind.required(part.params) - set(problem.fields)):
        there = ", ".join(problem.fields)
        raise DataError(
            f"problem {problem.id} has no {column!r}, which the reward component {part.component.name!r} reads; "
            f"it has {there}. Add the field to every line of the dataset, or choose another reward"
        )


def _bounded(score: ComponentScore, part: RubricPart) -> ComponentScore:
    """The score, or an error where its value is no number that a reward can hold."""
    weight = part.component.weight
    if score.error is not None or (score.value is not None and abs(weight * score.value) <= LARGEST_REWARD):
        return score
    error = f"{part.component.kind} gave {score.value}, which times the weight {weight:g} is no number up to "
    error += f"{LARGEST_REWARD:g}"
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
