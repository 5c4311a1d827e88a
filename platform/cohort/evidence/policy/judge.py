"""A record judged by a policy: an answer for each rule, and for all of them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cohort.evidence.plain_text import named
from cohort.evidence.policy.spec import Answer
from cohort.evidence.policy.text import Policy, Rule
from cohort.evidence.policy.view import CannotJudge, RecordView, Why

Verdict = Literal["met", "not met", "cannot be judged"]
EXIT_STATUS: dict[Verdict, int] = {"met": 0, "not met": 10, "cannot be judged": 11}
"""Of a card that is accepted; one that is not keeps its own."""
_WORDS: dict[Answer, str] = {"passed": "passed", "failed": "failed", "cannot": "cannot be judged"}


@dataclass(frozen=True)
class Judged:
    rule: Rule
    answer: Answer
    why: Why | Literal[""]
    """Why it cannot be judged; empty where it can."""
    words: str
    """What the record says; may hold foreign text."""

    @property
    def in_words(self) -> str:
        return _WORDS[self.answer]

    def as_dict(self) -> dict[str, Any]:
        """Without the words, which may come from fields that not everyone sees."""
        return {"name": self.rule.name, "rule": self.rule.spec.name, "answer": self.answer, "why": self.why}


@dataclass(frozen=True)
class Judgement:
    policy: Policy
    rules: tuple[Judged, ...]

    @property
    def verdict(self) -> Verdict:
        answers = {judged.answer for judged in self.rules}
        return "not met" if "failed" in answers else "cannot be judged" if "cannot" in answers else "met"

    @property
    def failed(self) -> list[Judged]:
        return [judged for judged in self.rules if judged.answer == "failed"]

    @property
    def open(self) -> list[Judged]:
        """Rules that cannot be judged."""
        return [judged for judged in self.rules if judged.answer == "cannot"]

    @property
    def summary(self) -> str:
        """`3 of 5 rules passed; failed: a; cannot be judged: b`."""
        counts = Counter(judged.answer for judged in self.rules)
        text = f"{counts['passed']} of {len(self.rules)} rules passed"
        for answer, rules in (("failed", self.failed), ("cannot be judged", self.open)):
            text += f"; {answer}: {named([judged.rule.name for judged in rules], 10)}" if rules else ""
        return text


def judge(policy: Policy, view: RecordView) -> Judgement:
    return Judgement(policy, tuple(_judged(rule, view) for rule in policy.rules))


def _judged(rule: Rule, view: RecordView) -> Judged:
    """A record of another release, or made by somebody else, may hold a value of another form: that is no answer."""
    try:
        outcome = rule.spec.judge(view, rule.params)
    except CannotJudge as fault:
        return Judged(rule, "cannot", fault.why, fault.words)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        words = f"the record holds a value that this release cannot read ({type(error).__name__})"
        return Judged(rule, "cannot", "unreadable", words)
    return Judged(rule, "passed" if outcome.passed else "failed", "", outcome.words)


def differences(judgement: Judgement, recorded: Mapping[str, Any]) -> list[str]:
    """Where the answers that a record holds are not those that its fields give. A rule that only reads what this
    audience does not get, or what came after the seal, is not compared."""
    rows = recorded["rules"]
    if len(rows) != len(judgement.rules):
        return [f"{len(rows)} answers, and its policy has {len(judgement.rules)} rules"]
    faults = []
    for judged, row in zip(judgement.rules, rows, strict=True):
        if judged.why == "withheld":
            continue
        if dict(row) != judged.as_dict():
            stated = _WORDS.get(row.get("answer"), ascii(row.get("answer")))
            faults.append(f"rule {judged.rule.name}: recorded {stated}, the record's fields give {judged.in_words}")
    return faults
