"""A record as rules read it: values of fields, with the reason where one cannot be had, and the record's life after
the seal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Why = Literal[
    "withheld", "not stated", "not measured", "not evaluated", "not applicable", "after the seal", "unreadable"
]
"""Why a rule cannot be judged. After the seal: the rule is about the record's life, of which nothing is known here."""
POLICY_FIELD = "oversight.policy"
"""The field that holds what the policy of the project gave at the seal. No rule reads it."""
_IN_WORDS: tuple[Why, ...] = ("not measured", "not evaluated", "not stated")


class CannotJudge(Exception):
    """A rule has nothing to be judged by."""

    def __init__(self, why: Why, words: str) -> None:
        super().__init__(words)
        self.why: Why = why
        self.words = words


@dataclass(frozen=True)
class SignOff:
    """A sign-off in force."""

    role: str
    """operator or reviewer."""
    decision: str
    """approved or rejected."""
    by: str = ""
    """Empty where the audience gets no names."""


@dataclass(frozen=True)
class Life:
    """What came after a record's seal, as far as rules are about it."""

    sign_offs: tuple[SignOff, ...] = ()
    revoked: bool = False
    superseded: bool = False


def life_of_status(status: Mapping[str, Any]) -> Life:
    """Of the signed status of a record (cohort-status/1). Raises KeyError, TypeError for another document."""
    signed = tuple(SignOff(each["role"], each["decision"], each["by"] or "") for each in status["sign_offs"])
    return Life(signed, status["revoked"] is not None, status["superseded_by"] is not None)


@dataclass(frozen=True)
class RecordView:
    document: Mapping[str, Any]
    """record.json, whole or as some audience gets it."""
    life: Life | None = None
    """None where nothing is known of it, as in a card."""

    def entry(self, path: str) -> Mapping[str, Any]:
        """Of `section.field`. Raises CannotJudge for one that this audience does not get, and for a field that there is
        none of."""
        section, _, name = path.partition(".")
        entry = self.document["sections"].get(section, {}).get(name)
        if entry is None:
            raise CannotJudge("unreadable", f"this record has no field {path}")
        if "withheld" in entry:
            raise CannotJudge("withheld", f"{path} is withheld from this audience; {entry['audience']} sees it")
        shown: Mapping[str, Any] = entry
        return shown

    def value(self, path: str) -> Any:
        """Of a field that has one. Raises CannotJudge, with the field's own words where nobody filled it."""
        entry = self.entry(path)
        if entry["source"] == "not applicable":
            raise CannotJudge("not applicable", f"{path} does not apply: {entry['note']}".rstrip(": "))
        if entry["value"] is None:
            text = str(entry["text"])
            raise CannotJudge(next((why for why in _IN_WORDS if why == text), "not stated"), f"{path}: {text}")
        return entry["value"]

    def known_life(self) -> Life:
        """Raises CannotJudge where none is known."""
        if self.life is None:
            raise CannotJudge("after the seal", "sign-offs and revocation come after the seal, and are not known here")
        return self.life

    def comparisons(self, suites: Sequence[str], categories: Sequence[str]) -> list[Mapping[str, Any]]:
        """Of the named suites and of the suites of these categories, in the record's order. Raises CannotJudge for a
        named suite, or a category, of which there is none."""
        compared: list[Mapping[str, Any]] = self.value("behaviour.performance")
        there = {str(comparison["suite"]) for comparison in compared}
        if missing := [name for name in suites if name not in there]:
            raise CannotJudge("not evaluated", f"not evaluated: {', '.join(missing)}")
        chosen = [each for each in compared if each["suite"] in suites or each["category"] in categories]
        if not chosen:
            raise CannotJudge("not evaluated", f"no suite of {', '.join(categories)} was evaluated")
        return chosen
