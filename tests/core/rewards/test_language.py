"""language pays the share of a text in the prompt's language, told by scripts and function words."""

import pytest

from grpo_core.rewards.language import LanguageParams, language_of, look, script_of
from grpo_core.rewards.language_words import LANGUAGES, WORDS
from tests.core.rewards.scoring import told, value
from tests.needs import TEST_DATA, needs

TEXTS = {
    "en": "She sells the rest of them at the market, and we want to know what she has by the end of it.",
    "de": "Sie verkauft den Rest davon auf dem Markt, und wir wollen wissen, was sie am Ende hat.",
    "fr": "Elle vend le reste au marché, et nous voulons savoir combien il y a dans la caisse à la fin.",
    "es": "Ella vende el resto en el mercado y queremos saber lo que tiene al final de todo.",
    "sw": "Yeye huuza yaliyosalia katika soko na sisi tunataka kujua ana pesa ngapi kwa jumla baada ya siku hiyo.",
    "ru": "Остаток она продаёт на рынке, и мы хотим знать, сколько у неё всего денег после этого.",
    "uk": "Решту вона продає на ринку, і ми хочемо знати, скільки в неї всього є грошей після того.",
    "zh": "剩下的鸭蛋她每天拿去农贸市场卖，我们想知道她一共赚了多少钱。",
    "ja": "残りを市場で売ります。彼女は毎日いくら手に入れていますか。",
    "ko": "나머지는 시장에서 팔고, 우리는 그녀가 하루에 얼마를 버는지 알고 싶습니다.",
    "ar": "تبيع الباقي في السوق ونريد أن نعرف كم تكسب في اليوم.",
    "th": "เธอขายไข่ที่เหลือที่ตลาดเกษตรกรทุกวัน เราอยากรู้ว่าเธอได้เงินเท่าไร",
    "bn": "বাকি ডিমগুলি তিনি প্রতিদিন বাজারে বিক্রি করেন, তিনি কত টাকা পান?",
    "te": "మిగిలిన వాటిని ఆమె ప్రతిరోజూ మార్కెట్‌లో అమ్ముతుంది, ఆమె ఎంత సంపాదిస్తుంది?",
}


@pytest.mark.parametrize("language", TEXTS)
def test_a_text_is_paid_in_full_for_its_own_language_and_little_for_another(language: str) -> None:
    assert language_of(look(TEXTS[language])) == language
    assert value("language", TEXTS[language], target=language) == pytest.approx(1, abs=0.05)
    assert value("language", TEXTS[language], prompt=TEXTS[language]) == pytest.approx(1, abs=0.05)
    for other in TEXTS.keys() - {language}:
        paid = value("language", TEXTS[language], target=other)
        assert paid is not None
        # Japanese is written with Chinese letters among others.
        assert paid <= (0.5 if (language, other) == ("ja", "zh") else 0.3), other


def test_the_share_is_of_letters() -> None:
    # 10 Han letters and 10 Latin ones
    assert value("language", "先把十位相加再把个位 then the one", target="zh") == 0.5
    assert told("language", "先把十位相加再把个位 then the one", target="zh").detail == (
        "zh: of 20 letters Han 50%, Latin 50%"
    )


def test_the_share_of_function_words() -> None:
    # Latin all of it; words of German alone: und, der, und, das, ist, nicht = 6; of English alone: the, and, of = 3
    text = "und der Hund und das Haus ist nicht the dog and of"
    assert value("language", text, target="de") == pytest.approx(6 / 9)
    assert value("language", text, target="en") == pytest.approx(3 / 9)


def test_with_few_function_words_the_script_decides() -> None:
    assert value("language", "Äpfel Birnen Kirschen Pflaumen", target="en") == 1
    assert value("language", "Äpfel Birnen Kirschen Pflaumen", target="ru") == 0


def test_what_is_no_prose_does_not_count() -> None:
    chinese = "先把十位相加，再把个位相加，最后把两个结果加起来。"
    for extra in (
        r"\frac{3}{4} \times \text{}",
        "$a + bcd = efg$",
        "```python\nprint('the answer is here')\n```",
        "`print`",
        "<think></think>",
        "https://example.org/the/answer",
        "x = y",
    ):
        assert value("language", f"{chinese} {extra}", target="zh") == 1, extra
    assert value("language", f"{chinese} the answer", target="zh") != 1


def test_part() -> None:
    mixed = f"<think>{TEXTS['en']}</think><answer>{TEXTS['de']}</answer>"
    assert value("language", mixed, target="en", part="think") == 1
    assert value("language", mixed, target="de", part="answer") == 1
    assert told("language", TEXTS["en"], target="en", part="think").detail == "no <think>…</think>"
    assert told("language", "<answer>x", target="en", part="answer").detail == "no <answer>…</answer>"
    assert value("language", "</think><think>", target="en", part="think") == 0


def test_too_little_text_has_no_language() -> None:
    assert told("language", "", target="en").detail == "0 letters are too few"
    assert value("language", "7 + 5 = 12", target="en") == 0
    assert value("language", "and so on", target="en") == 0
    assert value("language", "and so on", target="en", least_letters=5) == 1


@pytest.mark.parametrize("prompt", ["", "37 + 45 = ?", "ႠႡႢႣႤႥႦႧႨႩ"])
def test_a_prompt_without_a_language_is_an_error_of_the_sample(prompt: str) -> None:
    found = told("language", TEXTS["en"], prompt=prompt)
    assert (found.value, found.error_class) == (None, "sample")
    assert "set `target` to one" in (found.error or "")


@pytest.mark.parametrize(
    ("char", "script"),
    [("a", "LATIN"), ("é", "LATIN"), ("Ａ", "LATIN"), ("ж", "CYRILLIC"),
     ("字", "CJK"), ("ｶ", "KATAKANA"), ("ก", "THAI"),
     ("𝐀", ""), ("ℝ", ""), ("ª", "FEMININE"), ("\ue000", "")],
)  # fmt: skip
def test_scripts(char: str, script: str) -> None:
    assert script_of(char) == script


def test_every_language_that_can_be_chosen_is_known() -> None:
    chosen = set(LanguageParams.model_json_schema()["properties"]["target"]["enum"])
    assert chosen == {"prompt", *LANGUAGES}
    sharing = [language for language in LANGUAGES if list(LANGUAGES.values()).count(LANGUAGES[language]) > 1]
    assert set(WORDS) == set(sharing), "every language that shares its script with another needs words"


def test_the_language_of_mgsm_s_prompts() -> None:
    needs("public-sets")
    wrong = []
    for path in sorted((TEST_DATA / "mgsm").glob("mgsm_*.tsv")):
        for line in path.read_text(encoding="utf-8").splitlines():
            prompt = line.split("\t")[0]
            if language_of(look(prompt)) != path.stem[-2:]:
                wrong.append(prompt)
    assert len(wrong) <= 1  # as docs/rewards/language.md says, of 2,750
