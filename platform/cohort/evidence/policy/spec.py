"""What a kind of rule declares of itself, and what its parameters may be."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cohort.evidence.policy.view import RecordView

Answer = Literal["passed", "failed", "cannot"]
REQUIRED: Any = object()
"""Default of a parameter that a rule must give."""
_MOST_NAMES, _MOST_CHARS = 200, 200


@dataclass(frozen=True)
class Outcome:
    passed: bool
    words: str
    """What the record says, in one sentence without a full stop."""


@dataclass(frozen=True)
class Param:
    name: str
    words: str
    """What it is, for the page and docs/policies.md."""
    read: Callable[[Any], Any]
    """The checked value. Raises ValueError that says what it must be."""
    default: Any = REQUIRED


@dataclass(frozen=True)
class RuleSpec:
    """One kind of rule: declared here alone, and read by the parser, the judge, the page and the docs."""

    name: str
    demands: str
    """What a rule of this kind demands."""
    judged: str
    """How, so that nobody has to guess which number is compared."""
    mend: str
    """What people can do where such a rule did not pass."""
    reads: tuple[str, ...]
    """Fields of the record; `life` is what came after the seal."""
    params: tuple[Param, ...]
    judge: Callable[[RecordView, Mapping[str, Any]], Outcome]
    """Raises CannotJudge."""
    together: Callable[[Mapping[str, Any]], str] = lambda params: ""
    """What is wrong with the parameters together; empty for nothing."""


# ---------------------------------------------------------------------- values of parameters


def number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        raise ValueError(f"must be a number, not {_shown(value)}")
    return float(value)


def change(value: Any) -> float:
    """A difference of shares that a score can have."""
    if not -1 < (difference := number(value)) < 1:
        raise ValueError(f"must be a share between -1 and 1, where 0.02 is 2 points, not {_shown(value)}")
    return difference


def names(value: Any) -> tuple[str, ...]:
    """A list of texts, each once."""
    if not isinstance(value, list) or not value:
        raise ValueError(f"must be a list of names, such as [heldout], not {_shown(value)}")
    if len(value) > _MOST_NAMES:
        raise ValueError(f"lists {len(value):,} names; {_MOST_NAMES} at most are taken")
    for name in value:
        if not isinstance(name, str) or not name.strip() or len(name) > _MOST_CHARS:
            raise ValueError(f"lists {_shown(name)}, which is no name of 1 to {_MOST_CHARS} characters")
    if len(set(value)) != len(value):
        raise ValueError("lists a name twice")
    return tuple(value)


def choice(*choices: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"must be {' or '.join(choices)}, not {_shown(value)}")
        return str(value)

    return read


def choices_of(*choices: str) -> Callable[[Any], tuple[str, ...]]:
    """A list of some of the choices."""

    def read(value: Any) -> tuple[str, ...]:
        given = names(value)
        if odd := [name for name in given if name not in choices]:
            raise ValueError(f"lists {_shown(odd[0])}; there are {', '.join(choices)}")
        return given

    return read


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
