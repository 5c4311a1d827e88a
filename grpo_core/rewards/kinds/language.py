"""language: how much of the completion is in the language that it should be in.

Source: DeepSeek-R1, arXiv 2501.12948, section 2.3.2: the share of words in the target language, added to the reward
because a policy's thoughts drift between languages. Detected from scripts, which Unicode names, and among languages of
one script from function words. Linear in the text; nothing is loaded.
"""

import re
import unicodedata
from collections import Counter
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from grpo_core.errors import RewardError
from grpo_core.records.types import ComponentScore
from grpo_core.rewards.base import Kind, Params, ScoreRequest, inside_tag
from grpo_core.rewards.kinds.language_words import LANGUAGES, WORDS

LEAST_FUNCTION_WORDS = 5
"""With fewer of them in a text, only its script decides its language."""

_NAMES = {"CJK": "Han"}  # as people call the script
_QUOTED = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|\$[^$\n]*\$", re.DOTALL)
_NOT_PROSE = re.compile(r"\\(?:begin|end)\{[^{}\n]*\}|\\[A-Za-z]+|</?[A-Za-z][\w-]*>|https?://\S+")
_IN_TEXT = re.compile(r"\\text[a-z]*\{([^{}]*)\}")
_SENTENCE = re.compile(r"[^\W\d_]+(?:[\s,.;!?'’\"—-]+[^\W\d_]+){4,}|[\u0e00-\u9fff\uac00-\ud7af]{4,}")
"""Words in a row, as code and formulas seldom have them."""
_WORD = re.compile(r"[^\W\d_]+(?:[\u0300-\u036f'’][^\W\d_]+)*")


class LanguageParams(Params):
    target: Literal[
        "prompt", "ar", "bn", "de", "el", "en", "es", "fr", "he", "hi", "it", "ja", "ko", "nl", "pt", "ru", "sw", "ta",
        "te", "th", "tr", "uk", "vi", "zh",
    ] = "prompt"  # fmt: skip
    """The language to stay in: prompt for that of the problem's prompt, or a language by its ISO 639-1 code."""
    part: Literal["whole", "think", "answer"] = "whole"
    """What is looked at: the whole completion, or what the last `<think>` or `<answer>` tag holds."""
    least_letters: Annotated[int, Field(ge=1, le=10_000)] = 20
    """With fewer letters than this no language is detected, and the value is 0."""
    passes_from: Annotated[float, Field(ge=0, le=1)] = 0.9
    """The value from which a completion counts as passed; its value is its share in any case."""


class TextProfile(NamedTuple):
    """What a text is written in."""

    letters: int
    scripts: Counter[str]
    """Letters by script."""
    words: Counter[str]
    """Words of the Latin and Cyrillic scripts, case folded."""


def score(sample: ScoreRequest, params: LanguageParams) -> ComponentScore:
    """Share of letters in the language's scripts, times the share of its function words against the nearest other's.
    Raises RewardError when the prompt's language cannot be detected."""
    target = params.target if params.target != "prompt" else _of_prompt(sample.problem.prompt)
    if target is None:
        raise RewardError(
            f"problem {sample.problem.id}: its prompt has too few letters to detect its language; set `target` to one"
        )
    text = sample.completion if params.part == "whole" else inside_tag(sample.completion, params.part)
    if text is None:
        return ComponentScore(value=0.0, passed=False, detail=f"no <{params.part}>…</{params.part}>")
    profile = look(text)
    if profile.letters < params.least_letters:
        return ComponentScore(value=0.0, passed=False, detail=f"{profile.letters} letters are too few")
    value = script_share(profile, target) * word_share(profile, target)
    return ComponentScore(value=value, passed=value >= params.passes_from, detail=_detail(profile, target))


def look(text: str) -> TextProfile:
    """Letters and words of the text's prose. LaTeX commands, tags, addresses and single Latin letters, which are
    variables, are no prose; of fences, backticks and formulas what is in \\text{} and five words in a row are."""
    prose = _NOT_PROSE.sub(" ", _QUOTED.sub(lambda match: _prose_in(match[0]), text))
    scripts: Counter[str] = Counter()
    words: Counter[str] = Counter()
    for match in _WORD.finditer(prose):
        word = match[0]
        if len(word) == 1 and word.isascii():
            continue
        for char, times in Counter(word).items():
            if name := script_of(char):
                scripts[name] += times
        if script_of(word[0]) in ("LATIN", "CYRILLIC"):
            words[word.casefold().replace("’", "'")] += 1
    return TextProfile(scripts.total(), scripts, words)


def _prose_in(quoted: str) -> str:
    texts = _IN_TEXT.findall(quoted)
    return f" {' '.join([*texts, *_SENTENCE.findall(_IN_TEXT.sub(' ', quoted))])} "


def script_share(profile: TextProfile, language: str) -> float:
    """Share of letters in the scripts that the language is written in. Japanese has kana among its letters: without,
    they are Chinese."""
    if language == "ja" and not _has_kana(profile):
        return 0.0
    return sum(profile.scripts[script] for script in LANGUAGES[language]) / profile.letters


def word_share(profile: TextProfile, language: str) -> float:
    """Of the text's function words that belong to this language or to the nearest other one of the same scripts, and
    not to both, the share of this one's; 1 for a language whose script is no other's here, and where there are too
    few."""
    mine = WORDS.get(language)
    if mine is None:
        return 1.0
    rivals = [words for other, words in WORDS.items() if other != language and LANGUAGES[other] == LANGUAGES[language]]
    nearest = max(rivals, key=lambda words: _count(profile, words))
    own, other = _count(profile, mine - nearest), _count(profile, nearest - mine)
    return own / (own + other) if own + other >= LEAST_FUNCTION_WORDS else 1.0


def _has_kana(profile: TextProfile) -> bool:
    return profile.scripts["HIRAGANA"] + profile.scripts["KATAKANA"] > 0.05 * profile.letters


def _count(profile: TextProfile, words: frozenset[str]) -> int:
    return sum(profile.words[word] for word in words)


def language_of(profile: TextProfile) -> str | None:
    """The language of a text: of those whose scripts hold most of its letters, the one with the most function words,
    the first of equals; None for a text without letters, or in a script that is not known."""
    if not profile.letters:
        return None
    shares = {language: script_share(profile, language) for language in LANGUAGES}
    best = max(shares.values())
    if best < 0.5:
        return None
    likely = [language for language, share in shares.items() if share == best]
    if {"ja", "zh"} & set(likely):  # kana marks Japanese, whose scripts hold Chinese's
        return "ja" if _has_kana(profile) else "zh"
    return max(likely, key=lambda language: _count(profile, WORDS.get(language, frozenset())))


@lru_cache(maxsize=4096)
def _of_prompt(prompt: str) -> str | None:
    return language_of(look(prompt))


@lru_cache(maxsize=65536)
def script_of(char: str) -> str:
    """First word of the letter's name in Unicode, such as LATIN, CJK or DEVANAGARI; empty for signs and for letters of
    formulas. The standard library knows no scripts, but letters are named by theirs."""
    name = unicodedata.name(char, "")
    script = name.partition(" ")[0]
    if script in ("MATHEMATICAL", "DOUBLE-STRUCK", "SCRIPT", "BLACK-LETTER", "MODIFIER", "SUPERSCRIPT", "SUBSCRIPT"):
        return ""
    if script in ("FULLWIDTH", "HALFWIDTH"):
        return name.split()[1]
    return script


def _detail(profile: TextProfile, target: str) -> str:
    most = ", ".join(
        f"{_NAMES.get(name, name.title())} {times / profile.letters:.0%}"
        for name, times in profile.scripts.most_common(3)
    )
    words = f"; {word_share(profile, target):.0%} of its function words" if target in WORDS else ""
    return f"{target}: of {profile.letters:,} letters {most}{words}"


SPEC = Kind("language", LanguageParams, "the share that is in the prompt's language, or in another", version=2)
