"""A suite's scorer: a reward kind with parameters that suit suite items. Loads no torch.

An error of a completion is an error of its item: it scores 0, its error is kept and counted, and the evaluation
continues.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import rfc8785
from pydantic import JsonValue

from grpo_core.config.evaluation import ScorerKind
from grpo_core.config.reward import RewardComponent, RewardConfig, RewardKind
from grpo_core.errors import ConfigError, FieldProblem
from grpo_core.evaluate.item import SuiteItem
from grpo_core.records.types import ComponentScore
from grpo_core.rewards import Rubric, Runner, ScoreRequest

SCORERS: dict[ScorerKind, tuple[RewardKind, dict[str, JsonValue]]] = {
    "exact": ("exact", {"extract": "marked", "column": "target"}),
    "number": ("numeric", {"extract": "marked_number", "percent": "ignore"}),
    "choice": ("choice", {"extract": "marked", "column": "choices", "reference": "from_0", "inside": True}),
    "refusal": ("refusal", {}),
    "function_call": ("function_call", {"column": "target"}),
    "format": ("format", {"column": "target"}),
    "contains": ("contains", {"column": "target"}),
}
"""The reward kind that each scorer is, and its parameters where a suite does not say otherwise."""
assert set(SCORERS) == set(get_args(ScorerKind))

_COMPONENT = "reward.components.0."


@dataclass(frozen=True, slots=True)
class Scorer:
    """A kind with its parameters, ready to score."""

    name: str
    rubric: Rubric
    """Of the one component `score`."""

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON (RFC 8785) of the reward kind, its version and all parameters, as hex."""
        (part,) = self.rubric.parts
        identity: dict[str, Any] = {
            "kind": part.kind.name,
            "version": part.kind.version,
            "params": part.params.model_dump(mode="json"),
        }
        return hashlib.sha256(rfc8785.dumps(identity)).hexdigest()

    def fault(self, item: SuiteItem) -> str | None:
        """Why no completion of this item can be scored; None when it can."""
        (part,) = self.rubric.parts
        fault = part.kind.fault(item.scored_problem(), part.params)
        return None if fault is None else fault.removeprefix(f"problem {item.id}: ")

    def score(
        self,
        answers: Sequence[tuple[SuiteItem, str]],
        check: Callable[[], None] = lambda: None,
        *,
        prefill: str = "",
    ) -> list[ComponentScore]:
        """One score for each (item, completion), in order. `check` is called often and may raise to stop. `prefill`:
        what the prompts had already written of each answer, which kinds read as they do for rewards."""
        with Runner(self.rubric) as runner:
            samples = [ScoreRequest(item.scored_problem(), completion, prefill=prefill) for item, completion in answers]
            return [scored.components["score"] for scored in runner.score(samples, check=check)]


def scorer(kind: str, params: Mapping[str, JsonValue]) -> Scorer:
    """Raises ConfigError for an unknown kind, and listing every wrong parameter as `params.<name>`."""
    name = next((name for name in SCORERS if name == kind), None)
    if name is None:
        raise ConfigError(f"there is no scorer {kind!r}; there are {', '.join(SCORERS)}")
    reward_kind, suited = SCORERS[name]
    component = RewardComponent(name="score", kind=reward_kind, params={**suited, **params})
    try:
        return Scorer(name, Rubric(RewardConfig(components=(component,))))
    except ConfigError as error:
        problems = tuple(
            FieldProblem(problem.path.removeprefix(_COMPONENT), problem.message, problem.code)
            for problem in error.problems
        )
        raise ConfigError.listing(f"the settings of the scorer {kind} are not valid", problems) from None
