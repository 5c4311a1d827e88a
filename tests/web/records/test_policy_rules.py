"""Rules of a policy: each kind on values written by hand, texts that are no policy, and the verdict over all rules."""

from typing import Any

import pytest

from cohort.evidence.policy.judge import differences, judge
from cohort.evidence.policy.kinds import KINDS
from cohort.evidence.policy.text import MOST_BYTES, Policy, PolicyFault, parse_policy, policy_of
from cohort.evidence.policy.view import Life, RecordView, SignOff, life_of_status
from cohort.records.fields import COMMON_FIELDS
from grpo_core.config.yaml_text import dump_yaml
from tests.factories.small_cards import HEAD
from tests.tables import cases

CHANGE = {"fixed": 5, "broken": 1, "both_right": 2, "both_wrong": 2, "clusters": None}
COMPARISON = {"category": "performance", "higher_is": "better", "problems": 10, "margin": 0.05}
COMPARISON |= {"non_inferiority": "not_worse", "verdict": "better"}
PROBE = {"pays_wrong": [], "pays_part": [], "rejects": [], "verdict": "clean", "classes": [{}, {}]}
RULES = cases("policy/rules", "rule", "values", "life", "answer", "why", "words")


def entry(path: str, given: Any) -> dict[str, Any]:
    filled = {"value": given, "text": "in words", "source": "measured", "note": "", "audience": "public"}
    match path, given:
        case _, {"withheld": _}:
            return {**given, "audience": "downstream"}
        case _, {"text": text}:
            return {**filled, "value": None, "text": text, "source": "not stated"}
        case _, {"source": source}:
            return {**filled, "value": None, "source": source}
        case "behaviour.performance", _:
            return {**filled, "value": [comparison(each) for each in given]}
        case "reward.brittleness", {"probe": {**probe}}:
            return {**filled, "value": {"probe": {**PROBE, **probe}}}
        case "oversight.flags", _:
            return {**filled, "value": [{"overridden": False, **flag} for flag in given]}
    return filled


def comparison(given: dict[str, Any]) -> dict[str, Any]:
    change = {**CHANGE, **{name: given[name] for name in CHANGE if name in given}}
    change["interval"] = {"low": given.get("low", 0.1), "high": given.get("high", 0.6)}
    outer = {name: value for name, value in given.items() if name not in (*CHANGE, "low", "high")}
    return {**COMPARISON, "change": change, **outer}


def record(values: dict[str, Any] | None = None) -> dict[str, Any]:
    given = {"behaviour.performance": [], "oversight.flags": [], **(values or {})}
    sections = {
        section: {name: entry(f"{section}.{name}", given.get(f"{section}.{name}", 1)) for name in fields}
        for section, fields in COMMON_FIELDS.items()
    }
    return {"head": HEAD, "sections": sections}


def life_of(given: dict[str, Any] | None) -> Life | None:
    if given is None:
        return None
    signed = [SignOff(role, "approved", "ada") for role in given.get("signed", ())]
    signed += [SignOff(role, "rejected", "ben") for role in given.get("rejected", ())]
    return Life(tuple(signed), given.get("revoked", False), given.get("superseded", False))


def policy(*rules: dict[str, Any]) -> Policy:
    named = [{"name": f"rule {at}", **rule} for at, rule in enumerate(rules)]
    return policy_of({"schema": "cohort-policy/1", "name": "release", "rules": named})


@pytest.mark.parametrize(("rule", "values", "life", "answer", "why", "words"), RULES)
def test_a_rule_is_judged_by_the_record(
    rule: dict[str, Any], values: Any, life: Any, answer: str, why: str | None, words: str | None
) -> None:
    (judged,) = judge(policy(rule), RecordView(record(values), life_of(life))).rules
    assert (judged.answer, judged.why) == (answer, why or ""), judged.words
    assert (words or "") in judged.words


def test_every_kind_of_rule_has_cases_that_pass_fail_and_cannot_be_judged() -> None:
    by_kind: dict[str, set[str]] = {name: set() for name in KINDS}
    for case in RULES:
        by_kind[case.values[0]["rule"]].add(case.values[3])
    assert {name: {"passed", "failed", "cannot"} - answers for name, answers in by_kind.items()} == {
        name: {"cannot"} if name == "ended" else set() for name in KINDS
    }


@pytest.mark.parametrize(("text", "rules", "problems"), cases("policy/refused", "text", "rules", "problems"))
def test_a_text_that_is_no_policy_is_refused_with_every_fault_and_its_line(
    text: str | None, rules: Any, problems: list[str]
) -> None:
    if text is None:
        text = dump_yaml({"schema": "cohort-policy/1", "name": "release", "rules": rules})
    with pytest.raises(PolicyFault) as caught:
        parse_policy(text)
    said = [str(problem) for problem in caught.value.problems]
    expected = [problem.removeprefix("line 0: ") for problem in problems]
    assert [line[: len(start)] for line, start in zip(said, expected, strict=True)] == expected


def test_a_text_that_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(PolicyFault, match="at most 65,536 bytes"):
        parse_policy("#" * MOST_BYTES + "\n")


def test_the_digest_is_of_the_content_and_not_of_its_layout() -> None:
    yaml = "schema: cohort-policy/1\nname: release  # of a model\nrules:\n- {rule: ended, name: a}\n"
    json = '{"rules": [{"name": "a", "rule": "ended"}], "name": "release", "schema": "cohort-policy/1"}'
    assert parse_policy(yaml).digest == parse_policy(json).digest
    assert parse_policy(yaml.replace("ended", "current")).digest != parse_policy(json).digest


@pytest.mark.parametrize(
    ("state", "answers"),
    [
        ({}, ["failed", "passed"]),
        ({"sign_offs": ["operator", "reviewer"]}, ["passed", "passed"]),
        ({"sign_offs": ["operator", "reviewer"], "superseded_by": {"version": 2}}, ["passed", "failed"]),
        ({"sign_offs": ["operator", "reviewer"], "revoked": {"reason": "it leaked"}}, ["failed", "failed"]),
    ],
)
def test_a_signed_status_is_read_as_the_life_of_the_record(state: dict[str, Any], answers: list[str]) -> None:
    signed = [{"role": role, "decision": "approved", "by": None} for role in state.pop("sign_offs", ())]
    life = life_of_status({"revoked": None, "superseded_by": None, "sign_offs": signed, **state})
    judgement = judge(policy({"rule": "sign_offs"}, {"rule": "current"}), RecordView(record(), life))
    assert [judged.answer for judged in judgement.rules] == answers


ENDED, FAILED, OPEN = {"rule": "ended"}, {"rule": "ended", "accept": ["failed"]}, {"rule": "sign_offs"}


@pytest.mark.parametrize(
    ("rules", "verdict", "summary"),
    [
        ([ENDED, ENDED], "met", "2 of 2 rules passed"),
        ([ENDED, OPEN], "cannot be judged", "1 of 2 rules passed; cannot be judged: rule 1"),
        ([FAILED, OPEN], "not met", "0 of 2 rules passed; failed: rule 0; cannot be judged: rule 1"),
    ],
)
def test_one_failed_rule_decides_and_one_open_rule_leaves_it_open(
    rules: list[dict[str, Any]], verdict: str, summary: str
) -> None:
    judgement = judge(policy(*rules), RecordView(record()))
    assert (judgement.verdict, judgement.summary) == (verdict, summary)


def test_recorded_answers_that_the_fields_do_not_give_are_named() -> None:
    judgement = judge(policy(FAILED, OPEN), RecordView(record()))
    rows = [judged.as_dict() for judged in judgement.rules]
    assert differences(judgement, {"rules": rows}) == []
    rows[0] |= {"answer": "passed"}
    assert differences(judgement, {"rules": rows}) == ["rule rule 0: recorded passed, the record's fields give failed"]
    assert differences(judgement, {"rules": rows[:1]}) == ["1 answers, and its policy has 2 rules"]
