"""function_call: the calls that the completion writes out are those wanted. Names and arguments are compared, nothing
is run.

After the AST check of the Berkeley Function-Calling Leaderboard (Patil et al. 2025): each argument has a list of values
that are right, of which `""` means that it may be left out; texts are compared without case, spaces and the signs
`, . / - _ * ^ " '`. Otherwise than there, 5.0 is 5 whatever the declared type, and any order of calls is right.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from grpo_core.errors import RewardError
from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Kind, Params, ScoreRequest, shown
from grpo_core.rewards.kinds.calls import Call, calls_in, same_name

FUNCTIONS = "functions"
"""Field of the problem with the functions that may be called: name, and parameters as JSON Schema."""
MAX_CALLS = 16

_LOOSE = re.compile(r"[ ,./\-_*^\"']")


class FunctionCallParams(Params):
    column: Annotated[str, Field(min_length=1, max_length=100)] = "calls"
    """Field of the problem with the list of wanted calls; empty where no function should be called."""
    partial: bool = False
    """Score the share of wanted calls that were made, 0 when one was made that is not wanted; off: all or nothing."""


def fault_of(calls: Any, functions: Sequence[Mapping[str, Any]]) -> str | None:
    """What is wrong with the wanted calls; None when nothing is."""
    if not isinstance(calls, list):
        return 'must be a list of calls {"name", "arguments"}; empty where no function should be called'
    if len(calls) > MAX_CALLS:
        return f"has {len(calls)} calls; at most {MAX_CALLS} are compared"
    names = [function["name"] for function in functions]
    for call in calls:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
            return "holds a call without a 'name'"
        if not isinstance(arguments := call.get("arguments", {}), dict):
            return f"holds a call of {call['name']!r} whose 'arguments' are no object"
        if unlisted := [name for name, values in arguments.items() if not isinstance(values, list) or not values]:
            return (
                f"holds a call of {call['name']!r} whose argument {unlisted[0]!r} must be a list of the values that "
                'are right, such as ["Paris"]; add "" where it may be left out'
            )
        if names and not any(same_name(name, call["name"]) for name in names):
            return f"calls {call['name']!r}, which is not among {FUNCTIONS!r}: {', '.join(names)}"
    return None


def score(sample: ScoreRequest, params: FunctionCallParams) -> ComponentScore:
    """1 when exactly the wanted calls were made, else 0 (or a share, with `partial`). Raises RewardError for a problem
    whose wanted calls are not as they should be."""
    expected, functions = sample.problem.meta.get(params.column), sample.problem.meta.get(FUNCTIONS) or ()
    if fault := fault_of(expected, functions):
        raise RewardError(f"problem {sample.problem.id}: {params.column!r} {fault}")
    value, detail = _compared(calls_in(sample.completion, functions), expected, params)
    return ComponentScore(value=value, passed=value == 1, detail=shown(detail))


def _compared(made: Sequence[Call], expected: Any, params: FunctionCallParams) -> tuple[float, str]:
    if not expected:
        return float(not made), f"called {made[0].name}" if made else "no call, as it should be"
    if not made:
        return 0.0, "no call that can be read"
    if len(made) > MAX_CALLS:
        return 0.0, f"{len(made)} calls; at most {MAX_CALLS} are compared"
    matched = _matched(made, expected)
    if matched == len(expected) == len(made):
        return 1.0, ", ".join(call.name for call in made)
    share = matched / len(expected) if params.partial and matched == len(made) else 0.0
    return share, f"{matched} of {len(expected)} wanted calls, {len(made)} made: {_why(made, expected)}"


def _matched(made: Sequence[Call], expected: Sequence[Mapping[str, Any]]) -> int:
    """Size of a largest matching of wanted calls to calls made (Kuhn's augmenting paths)."""
    fits = [[_fits(call, want) is None for call in made] for want in expected]
    matches: dict[int, int] = {}

    def match(want: int, seen: set[int]) -> bool:
        for call, fit in enumerate(fits[want]):
            if fit and call not in seen:
                seen.add(call)
                if call not in matches or match(matches[call], seen):
                    matches[call] = want
                    return True
        return False

    return sum(match(want, set()) for want in range(len(expected)))


def _why(made: Sequence[Call], expected: Sequence[Mapping[str, Any]]) -> str:
    """What is wrong with the first call that fits nowhere."""
    for call in made:
        faults = [_fits(call, want) for want in expected]
        if all(faults):
            named = [fault for fault, want in zip(faults, expected, strict=True) if same_name(call.name, want["name"])]
            return named[0] or "" if named else f"{call.name} was not wanted"
    return "not all were made"


def _fits(call: Call, want: Mapping[str, Any]) -> str | None:
    """None when the call is the wanted one, else what is not as it should be."""
    if not same_name(call.name, want["name"]):
        return f"{call.name} instead of {want['name']}"
    right = want.get("arguments", {})
    for name, value in call.arguments.items():
        if name not in right:
            return f"{call.name} has no argument {name} here"
        if not any(_same(value, option) for option in right[name]):
            return f"{name}={value!r}"
    for name, values in right.items():
        if name not in call.arguments and "" not in values:
            return f"{name} is missing"
    return None


def _same(value: Any, right: Any) -> bool:
    match right:
        case bool() | None:
            return value is right
        case int() | float():
            return isinstance(value, int | float) and not isinstance(value, bool) and value == right
        case str():
            return isinstance(value, str) and _loose(value) == _loose(right)
        case list():
            return isinstance(value, list) and len(value) == len(right) and all(map(_same, value, right))
        case dict():
            return isinstance(value, dict) and _same_object(value, right)
    return False


def _same_object(value: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Inside an object each field has its list of right values again, as BFCL writes them; a plain value is one."""
    listed = {name: options if isinstance(options, list) else [options] for name, options in right.items()}
    return all(
        name in listed and any(_same(given, option) for option in [*listed[name], right[name]])
        for name, given in value.items()
    ) and all(name in value or "" in values for name, values in listed.items())


def _loose(text: str) -> str:
    return _LOOSE.sub("", text).casefold()


SPEC = Kind("function_call", FunctionCallParams, "the function calls written out are those wanted; nothing is run")
