"""The rule rewards against the cases worked by hand in tests/cases/rewards, a file for each kind; and what holds of
some of them whatever the text.

A case is a completion with the `value` it earns, or `error`; what else it may say is in FIELDS."""

import json
import math
import re
from contextlib import closing
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.data import Problem
from grpo_core.errors import ConfigError
from grpo_core.rewards import KINDS, Runner
from grpo_core.rewards.base import ScoreRequest, extract_answer
from grpo_core.rewards.kinds import similarity as measures
from grpo_core.rewards.kinds.language import LanguageParams, language_of, look, score, script_of
from grpo_core.rewards.kinds.language_words import LANGUAGES, WORDS
from grpo_core.rewards.kinds.tags import TagsParams, _entries, _in_order
from grpo_core.rewards.subprocess_pool import Pool
from tests.needs import TEST_DATA, needs
from tests.tables import FOLDER, cases

from .scoring import rubric_of, scored, value

FILES = sorted(path.stem for path in (FOLDER / "rewards").glob("*.yaml"))


FIELDS = ("completion", "value", "kind", "params", "question", "reference", "meta", "tokens")
FIELDS += ("passed", "detail", "match", "error", "steps")
"""`kind` is the file's name where it is left out, `passed` whether the value is 1, `error` (its class) `sample`.
`match` is a part of the detail, or of the error; `steps` end and value of each."""


def sample_of(case):
    problem = Problem("p", case["question"] or "", case["reference"] or "", case["meta"] or {})
    return ScoreRequest(problem, case["completion"], case["tokens"])


def fits(case, score):
    if case["value"] == "error":
        error = (score.value, score.error_class) == (None, case["error"] or "sample")
        return error and (case["match"] or "") in (score.error or "")
    return (
        score.value is not None
        and math.isclose(score.value, case["value"], abs_tol=1e-12)
        and score.passed == (case["value"] == 1 if case["passed"] is None else case["passed"])
        and case["detail"] in (None, score.detail)
        and (case["match"] or "") in score.detail
        and case["steps"] in (None, [[step.end, step.value] for step in score.steps or ()])
    )


@pytest.mark.parametrize("name", FILES)
def test_each_case_earns_its_value(name):
    groups = {}
    for param in cases(f"rewards/{name}", *FIELDS):
        case = dict(zip(FIELDS, param.values, strict=True))
        component = {"kind": case["kind"] or name, "params": case["params"] or {}}
        groups.setdefault(json.dumps(component), []).append((param.id, case))
    kinds = {json.loads(component)["kind"] for component in groups}
    wrong = []
    with closing(Pool([kind for kind in kinds if KINDS[kind].mode == "subprocess"], workers=1, deadline=30)) as pool:
        for component, table in groups.items():
            with Runner(rubric_of(json.loads(component))) as runner:
                runner._pool = pool  # a process takes longer to start than to score
                results = runner.score([sample_of(case) for _, case in table])
            for (number, case), result in zip(table, results, strict=True):
                score = result.components["c0"]
                if not fits(case, score) or result.reward != score.value:
                    wrong.append((number, case, score))
    assert wrong == []


def test_every_rule_has_cases():
    rules = {name for name, kind in KINDS.items() if kind.mode in ("inline", "subprocess")}
    assert rules - set(FILES) == set()


DEEP = json.loads('{"items": ' * 50 + "{}" + "}" * 50)


@pytest.mark.parametrize(
    ("kind", "params", "path", "match"),
    [
        *cases("reward_params", "kind", "params", "path", "match"),
        pytest.param("python", {"source": "#" * 65_537}, "source", None, id="long source"),
        pytest.param("regex", {"pattern": "a" * 2000}, None, None, id="longest pattern"),
        pytest.param("regex", {"pattern": "a" * 2001}, "pattern", None, id="long pattern"),
        pytest.param("regex", {"pattern": "(" * 900 + ")" * 900}, "pattern", "RecursionError", id="deep pattern"),
        pytest.param("json_schema", {"json_schema": DEEP}, "json_schema", "more than 40 deep", id="deep schema"),
        pytest.param("json_schema", {"json_schema": {"enum": ["a" * 70_000]}}, "json_schema", "65,536", id="long one"),
    ],
)
def test_a_parameter_is_refused_by_its_path(kind, params, path, match):
    component = {"kind": kind, "params": params}
    if path is None:
        rubric_of(component)
        return
    with pytest.raises(ConfigError) as caught:
        rubric_of(component)
    problems = {problem.path: problem.message for problem in caught.value.problems}
    assert list(problems) == [f"reward.components.0.params.{path}".rstrip(".")]
    assert (match or "") in next(iter(problems.values()))


def test_the_columns_that_a_kind_reads():
    def columns(kind, **params):
        return sorted(rubric_of({"kind": kind, "params": params}).columns)

    assert columns("choice", column="choices") == ["answer", "choices"]
    assert columns("choice") == ["answer"]
    assert columns("length") == []
    assert columns("json_schema", column="shape") == ["shape"]
    assert columns("length", shape="cosine", right_by="choice", right_params={"column": "choices"}) == [
        "answer",
        "choices",
    ]
    assert columns("similarity", column="refs") == ["refs"]


@pytest.mark.parametrize(("how", "completion", "answer"), cases("extraction", "how", "completion", "answer"))
def test_extraction(how, completion, answer):
    assert extract_answer(completion, how) == answer


# ---------------------------------------------------------------------- equations and tags, whatever the text

SYMBOLS = "1 23 4.5 . , + - − – * ** / // × ÷ · = == < > : ( ) [ ] { } ^ % ! \\ \\times \\frac \\( \\\\ $ € x _ ²"
ODD = (" ", "\n", "\r", "\u2028", "\u202e", "\u200b", "\ufffd", "\0", "\ud800", "😀", "é", "__import__('os')")


@given(
    st.one_of(st.lists(st.sampled_from([*SYMBOLS.split(" "), *ODD]), max_size=40).map("".join), st.text(max_size=100))
)
def test_any_text_is_paid_a_share_and_its_steps_lie_in_it(text):
    result = scored("equations", text)
    steps = result.steps
    assert steps is not None
    ends = [step.end for step in steps]
    assert ends == sorted(set(ends))
    assert all(text[end - 1] in "0123456789" for end in ends)
    assert result.value == (sum(step.value for step in steps) / len(steps) if steps else 0)
    assert (result.passed, result.error) == (result.value == 1, None)


@given(
    st.lists(st.tuples(st.sampled_from("+-*"), st.integers(0, 99)), min_size=1, max_size=6),
    st.integers(0, 99),
    st.integers(-1, 1),
)
def test_what_python_says_of_whole_numbers(rest, first, off):
    left = f"{first}" + "".join(f" {operation} {number}" for operation, number in rest)
    assert value("equations", f"{left} = {eval(left) + off}") == float(off == 0)


@given(st.integers(0, 999), st.integers(1, 999), st.integers(0, 999))
def test_fractions_are_exact(above, below, more):
    whole = Fraction(above, below) * below + more
    assert value("equations", f"{above} / {below} * {below} + {more} = {whole}") == 1


@pytest.mark.parametrize(
    "piece", ["1+", "1 + 1 = 2\n", "1+1=", "** ", "**1", "(", "1.", "1,111", "-", "=", "\\", " ", "9"]
)
def test_long_text_of_one_kind_is_read_in_one_pass(piece):
    # A reader that went back over what it has read would need minutes to hours for 20,000 characters.
    text = piece * (20_000 // len(piece))
    result = scored("equations", text)
    assert len(result.steps or ()) == (text.count("\n") if "\n" in piece else 0)


@given(
    st.text("ab", max_size=8),
    st.lists(st.sampled_from(["a", "b", "a?", "b*", "a+", "b{2}", "a{1,2}"]), min_size=1, max_size=5),
)
def test_a_sequence_is_what_the_same_pattern_of_letters_is(names, sequence):
    entries = _entries(TagsParams(sequence=tuple(sequence)))
    assert _in_order(list(names), entries) == (re.fullmatch("".join(sequence), names) is not None)


# ---------------------------------------------------------------------- language, told by scripts and function words


TEXTS: dict[str, str] = dict(case.values for case in cases("language_texts", "language", "text"))


@pytest.mark.parametrize("language", TEXTS)
def test_a_text_is_paid_in_full_for_its_own_language_and_little_for_another(language):
    text = TEXTS[language]
    assert language_of(look(text)) == language
    assert value("language", text, target=language) == pytest.approx(1, abs=0.05)
    assert score(ScoreRequest(Problem("p", text, ""), text), LanguageParams()).value == pytest.approx(1, abs=0.05)
    for other in TEXTS.keys() - {language}:
        paid = value("language", text, target=other)
        assert paid is not None
        # Japanese is written with Chinese letters among others.
        assert paid <= (0.5 if (language, other) == ("ja", "zh") else 0.3), other


def test_scripts():
    scripts = {"a": "LATIN", "é": "LATIN", "Ａ": "LATIN", "ж": "CYRILLIC", "字": "CJK", "ｶ": "KATAKANA", "ก": "THAI"}
    scripts |= {"𝐀": "", "ℝ": "", "ª": "FEMININE", "\ue000": ""}
    assert {char: script_of(char) for char in scripts} == scripts


def test_every_language_that_can_be_chosen_is_known():
    chosen = set(LanguageParams.model_json_schema()["properties"]["target"]["enum"])
    assert chosen == {"prompt", *LANGUAGES}
    sharing = [language for language in LANGUAGES if list(LANGUAGES.values()).count(LANGUAGES[language]) > 1]
    assert set(WORDS) == set(sharing), "every language that shares its script with another needs words"


@pytest.mark.parametrize("every", [25, pytest.param(1, marks=pytest.mark.slow)])
def test_the_language_of_mgsm_s_prompts(every):
    needs("public-sets")
    wrong = []
    for path in sorted((TEST_DATA / "mgsm").glob("mgsm_*.tsv")):
        for line in path.read_text(encoding="utf-8").splitlines()[::every]:
            prompt = line.split("\t")[0]
            if language_of(look(prompt)) != path.stem[-2:]:
                wrong.append(prompt)
    assert len(wrong) <= 1  # as docs/rewards/language.md says, of 2,750


# ---------------------------------------------------------------------- measures of similarity


CAT = ["the", "cat", "sat", "on", "the", "mat"]
SAT = ["the", "cat", "sat", "down"]
POLICE = ["police", "killed", "the", "gunman"]


def test_ratio_and_edit():
    # kitten and sitting: "ittn" in common; replace k and e, add g
    assert measures.ratio("kitten", "sitting") == pytest.approx(8 / 13)
    assert measures.edit("kitten", "sitting") == pytest.approx(1 - 3 / 7)
    assert measures.ratio("", "") == measures.edit("", "") == 1
    assert measures.ratio("a", "") == measures.edit("", "abc") == 0


def test_rouge_l():
    # Lin 2004, section 3.1: "police killed the gunman" against two sentences, LCS 3 and 2 of 4 words each
    assert measures.ratio(["police", "kill", "the", "gunman"], POLICE) == 0.75
    assert measures.ratio(["the", "gunman", "kill", "police"], POLICE) == 0.5
    assert measures.ratio(CAT, ["the", "cat", "lay", "on", "the", "mat"]) == pytest.approx(10 / 12)
    assert measures.ratio(CAT, CAT[:3]) == pytest.approx(6 / 9)


def test_ngram_f1():
    # cat, sat in common of 2 and 4 words
    assert measures.ngram_f1(["cat", "sat"], SAT, 1) == pytest.approx(4 / 6)
    # a word counts as often as both have it: the, the, the against the, cat, the: 2 of 3 and 3
    assert measures.ngram_f1(["the"] * 3, ["the", "cat", "the"], 1) == pytest.approx(4 / 6)
    # pairs: cat sat is the one in common of 1 and 3
    assert measures.ngram_f1(["cat", "sat"], SAT, 2) == pytest.approx(2 / 4)
    assert measures.ngram_f1(["cat"], ["cat"], 2) == 0


def test_bleu():
    # p1 = 5/5; pairs 3 of 4, threes 2 of 3, fours 1 of 2, one added above and below: 4/5, 3/4, 2/3; penalty e^(1 − 6/5)
    expected = (4 / 5 * 3 / 4 * 2 / 3) ** 0.25 * math.exp(-0.2)
    assert measures.bleu(["the", "cat", "sat", "on", "mat"], CAT) == pytest.approx(expected)
    # longer than the reference: no penalty; p1 = 6/7, pairs 5 of 6, threes 4 of 5, fours 3 of 4
    assert measures.bleu([*CAT, "today"], CAT) == pytest.approx((6 / 7 * 6 / 7 * 5 / 6 * 4 / 5) ** 0.25)
    # Papineni et al. 2002, section 2.1: "the" seven times has 2 of 7 words right, not 7; no pair: 1/7, 1/6, 1/5
    assert measures.bleu(["the"] * 7, CAT) == pytest.approx((2 / 7 * 1 / 7 * 1 / 6 * 1 / 5) ** 0.25)
    assert measures.bleu(CAT, CAT) == measures.bleu(["cat"], ["cat"]) == 1
    assert measures.bleu(["dog"], CAT) == measures.bleu([], CAT) == 0


def test_chrf():
    # abc and abd: of runs of 1, 2, 3 characters 2/3, 1/2, 0 in common, for both sides
    assert measures.chrf("abc", "abd") == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    # ab of abc: P = (2/2 + 1/1) / 2 = 1, R = (2/3 + 1/2) / 2 = 7/12; F2 = 5 · 1 · 7/12 / (4 + 7/12) = 35/55
    assert measures.chrf("ab", "abc") == pytest.approx(35 / 55)
    # the other way round P = 7/12, R = 1: 5 · 7/12 / (4 · 7/12 + 1) = 35/40: recall counts more
    assert measures.chrf("abc", "ab") == pytest.approx(35 / 40)
    assert measures.chrf("a b c", "abc") == 1
    assert measures.chrf("", "a") == measures.chrf("a", "") == measures.chrf("x", "y") == 0


@given(
    st.sampled_from(["ratio", "edit", "token_f1", "rouge_2", "rouge_l", "bleu", "chrf"]),
    st.text(max_size=60),
    st.text(max_size=60),
)
def test_every_measure_is_a_share(measure, answer, reference):
    score = scored("similarity", answer, reference, measure=measure, extract="whole")
    assert score.error_class == "sample" if score.value is None else 0 <= score.value <= 1 + 1e-9
