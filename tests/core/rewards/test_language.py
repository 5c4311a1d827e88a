"""language pays the share of a text in the prompt's language, told by scripts and function words."""

import pytest

from grpo_core.data import Problem
from grpo_core.rewards.base import Unscored
from grpo_core.rewards.language import LanguageParams, language_of, look, score, script_of
from grpo_core.rewards.language_words import LANGUAGES, WORDS
from tests.core.rewards.scoring import value
from tests.needs import TEST_DATA, needs
from tests.tables import cases

TEXTS: dict[str, str] = dict(case.values for case in cases("language_texts", "language", "text"))


@pytest.mark.parametrize("language", TEXTS)
def test_a_text_is_paid_in_full_for_its_own_language_and_little_for_another(language):
    text = TEXTS[language]
    assert language_of(look(text)) == language
    assert value("language", text, target=language) == pytest.approx(1, abs=0.05)
    assert score(Unscored(Problem("p", text, ""), text), LanguageParams()).value == pytest.approx(1, abs=0.05)
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
