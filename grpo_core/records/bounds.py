"""Ranges of what a worker may report, for records and for messages alike: within them every number can be stored,
summed and written as canonical JSON, and every page and card can show it."""

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field

from grpo_core.text import UNSTORABLE, refuse_unstorable

MOST = 2**53 - 1
"""The largest integer that every reader of JSON holds exactly. PostgreSQL's JSON has no exponents, so that beyond it a
float comes back as an integer that canonical JSON refuses."""
DEEPEST = 20
MOST_VALUES = 100_000


def bounded(content: Any) -> Any:
    """JSON content as it is. Raises ValueError when it is nested deeper than `DEEPEST`, has more than `MOST_VALUES`
    values, or holds a number that is not finite or beyond `MOST`."""
    values = 0
    for level in _levels(content, DEEPEST):
        values += len(level)
        if values > MOST_VALUES:
            raise ValueError(f"must have at most {MOST_VALUES} values")
        for value in level:
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{value} is not a finite number")
            if isinstance(value, int | float) and abs(value) > MOST:
                raise ValueError(f"a number in it is not from {-MOST} to {MOST}")
    return content


def shallow(content: Any) -> Any:
    """A whole record before it is checked, as it is. Raises ValueError when it is nested so deep that it is none, and
    functions that call themselves could not read it."""
    for _ in _levels(content, 2 * DEEPEST):
        pass
    return content


def _levels(content: Any, deepest: int) -> Iterator[list[Any]]:
    """The content, what lies directly in it, what lies in that, and so on."""
    level = [content]
    for _ in range(deepest + 1):
        yield level
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below.extend(value.values())
            elif isinstance(value, (list, tuple)):
                below.extend(value)
        if not below:
            return
        level = below
    raise ValueError(f"must be nested at most {deepest} deep")


def _storable_facts(content: dict[str, Any]) -> dict[str, Any]:
    refuse_unstorable(bounded(content))
    return content


def _inside(path: str) -> str:
    if not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise ValueError("must be a relative path that stays inside its folder")
    refuse_unstorable(path)
    return path


def _replaced(text: Any) -> Any:
    return UNSTORABLE.sub("\ufffd", text) if isinstance(text, str) else text


Count = Annotated[int, Field(ge=0, le=MOST)]
StepOrZero = Annotated[int, Field(ge=0, le=2**31 - 1)]
Step = Annotated[int, Field(ge=1, le=2**31 - 1)]
Number = Annotated[float, Field(ge=-1e150, le=1e150)]
"""What training makes of it, which may be far from what was meant; even the squares of many have a finite sum."""
Score = Annotated[float, Field(ge=-MOST, le=MOST)]
Sum = Annotated[float, Field(ge=0, le=MOST)]
Seconds = Annotated[float, Field(ge=0, le=1e10)]
Moment = Annotated[AwareDatetime, Field(ge=datetime(2000, 1, 1, tzinfo=UTC), lt=datetime(2100, 1, 1, tzinfo=UTC))]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
RelativePath = Annotated[str, Field(max_length=500), AfterValidator(_inside)]
Facts = Annotated[dict[str, Any], AfterValidator(bounded)]
"""Values of any shape."""
StorableFacts = Annotated[dict[str, Any], AfterValidator(_storable_facts)]
"""The same; a text that cannot be stored is refused."""
Text = Annotated[str, Field(max_length=1000), AfterValidator(refuse_unstorable)]
"""A line; one that cannot be stored is refused."""
Prose = Annotated[str, BeforeValidator(_replaced)]
"""What a program printed or raised; characters that cannot be stored are replaced by U+FFFD."""
