"""Scorers of suite items, one file each: from an item and a completion to a score of 0 to 1. Loads no torch.

What a scorer raises is an error of the item: it scores 0, its error is kept and counted, and the evaluation goes on.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

import rfc8785
from pydantic import JsonValue, ValidationError

from grpo_core.config.evaluation import ScorerKind
from grpo_core.config.messages import field_problems
from grpo_core.errors import ConfigError
from grpo_core.evaluate.item import SuiteItem
from grpo_core.evaluate.scorers import choice, contains, exact, function_call, number, refusal
from grpo_core.evaluate.scorers import format as format_scorer
from grpo_core.evaluate.scorers.base import Params, Score
from grpo_core.text import UNSTORABLE

__all__ = ["KINDS", "Kind", "Params", "Score", "Scorer", "scorer"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One way of scoring."""

    params: type[Params]
    score: Callable[[SuiteItem, str, Any], Score]
    fault: Callable[[SuiteItem, Any], str | None]
    """Why an item cannot be scored in this way; None when it can."""
    version: int
    """Counted up when the same completion may get another score."""


KINDS: dict[ScorerKind, Kind] = {
    "exact": Kind(exact.ExactParams, exact.score, exact.fault, exact.VERSION),
    "number": Kind(number.NumberParams, number.score, number.fault, number.VERSION),
    "choice": Kind(choice.ChoiceParams, choice.score, choice.fault, choice.VERSION),
    "refusal": Kind(refusal.RefusalParams, refusal.score, refusal.fault, refusal.VERSION),
    "function_call": Kind(
        function_call.FunctionCallParams, function_call.score, function_call.fault, function_call.VERSION
    ),
    "format": Kind(format_scorer.FormatParams, format_scorer.score, format_scorer.fault, format_scorer.VERSION),
    "contains": Kind(contains.ContainsParams, contains.score, contains.fault, contains.VERSION),
}
assert set(KINDS) == set(get_args(ScorerKind))


@dataclass(frozen=True, slots=True)
class Scorer:
    """A kind with its settings, ready to score."""

    name: ScorerKind
    params: Params

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON (RFC 8785) of kind, code version and all settings, defaults too, as hex."""
        told = {
            "kind": self.name,
            "version": KINDS[self.name].version,
            "params": self.params.model_dump(mode="json"),
        }
        return hashlib.sha256(rfc8785.dumps(told)).hexdigest()

    def fault(self, item: SuiteItem) -> str | None:
        """Why this item cannot be scored so, in words; None when it can."""
        return KINDS[self.name].fault(item, self.params)

    def score(self, item: SuiteItem, completion: str) -> Score:
        """Never raises for what the kind raises: that is the item's error."""
        try:
            found = KINDS[self.name].score(item, completion, self.params)
            if not 0 <= found.score <= 1:
                raise ValueError(f"gave {found.score}, which is not between 0 and 1")
        except Exception as error:  # noqa: BLE001 - whatever it is, it stands in the item's record and is counted
            return Score(0.0, error=_kept(f"{type(error).__name__}: {error}"))
        return replace(found, detail=_kept(found.detail))


def _kept(text: str) -> str:
    """A completion that writes \\ud800 as JSON must not end the run that writes its record down."""
    return UNSTORABLE.sub("\ufffd", text)


def scorer(kind: str, params: Mapping[str, JsonValue]) -> Scorer:
    """Raises ConfigError for a kind that is none, and listing every wrong setting as `params.<name>`."""
    found: Kind | None = {str(name): one for name, one in KINDS.items()}.get(kind)
    if found is None:
        raise ConfigError(f"there is no scorer {kind!r}; there are {', '.join(KINDS)}")
    name = next(one for one in KINDS if one == kind)
    try:
        return Scorer(name, found.params.model_validate(dict(params)))
    except ValidationError as error:
        problems = field_problems(error, prefix="params", model=found.params)
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise ConfigError(f"the settings of the scorer {kind} are not valid:\n{listed}", problems) from None
