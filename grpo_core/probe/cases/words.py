"""Problems whose answer is words, or maths that is no plain number: other ways to write it, and texts that are near."""

import unicodedata
from collections.abc import Callable, Iterator
from functools import partial

from grpo_core.probe.cases.case import Case, ProbeClass, Subject
from grpo_core.probe.report import Family, Rule


def _class(
    family: Family, rule: Rule, name: str, title: str, change: Callable[[str], str | None], subject: Subject = "words"
) -> ProbeClass:
    def made(case: Case) -> Iterator[str]:
        if case.subject != subject or not case.gold:
            return
        text = change(case.gold)
        if text and text != case.gold and (family == "false_negative" or not case.is_right(text)):
            yield case.write(text)

    about = "words" if subject == "words" else "expressions"
    return ProbeClass(name, title, about, family, rule, made)


_right = partial(_class, "false_negative", "told")
_wrong = partial(_class, "false_positive", "some")


def _swapped(text: str) -> str | None:
    for index in range(len(text) - 1):
        first, second = text[index], text[index + 1]
        if first.isalpha() and second.isalpha() and first.casefold() != second.casefold():
            return text[:index] + second + first + text[index + 2 :]
    return None


def _first_word(text: str) -> str | None:
    words = text.split()
    return words[0] if len(words) > 1 else None


def _around(template: str) -> Callable[[str], str]:
    return lambda text: template.replace("@", text)


WORDS = (
    _right("lower_case", "small letters", str.lower),
    _right("upper_case", "capital letters", str.upper),
    _right("double_spaces", "two spaces between words", lambda text: text.replace(" ", "  ")),
    _right("line_end_inside", "a line end between words", lambda text: text.replace(" ", "\n", 1)),
    _right("article", "an article in front", lambda text: f"the {text}"),
    _right("hyphens", "hyphens for spaces", lambda text: text.replace(" ", "-")),
    _right("decomposed", "accents as characters of their own (NFD)", lambda text: unicodedata.normalize("NFD", text)),
    _wrong("letter_dropped", "without its last letter", lambda text: text[:-1] if len(text) > 2 else None),
    _wrong("letter_doubled", "one letter twice", lambda text: text[:1] + text if len(text) > 1 else None),
    _wrong("letters_swapped", "two letters swapped", _swapped),
    _wrong("reversed", "backwards", lambda text: text[::-1]),
    _wrong("first_word", "its first word alone", _first_word),
    _wrong("word_inside", "inside a longer word", lambda text: f"un{text}ish"),
    _wrong("more_words", "with more words that change it", lambda text: f"{text} or none of them"),
    _right("expression_spaces", "spaces in LaTeX", _around(r"\, @ \,"), "expression"),
    _right("expression_brackets", r"\left( \right) around it", _around(r"\left(@\right)"), "expression"),
    _right("expression_display", "dollar signs twice", _around("$$@$$"), "expression"),
    _wrong("expression_plus_one", "one added", _around("@ + 1"), "expression"),
    _wrong("expression_negated", "sign flipped", _around("-(@)"), "expression"),
    _wrong("expression_doubled", "doubled", _around(r"2 \cdot (@)"), "expression"),
    _wrong("expression_squared", "squared", _around("(@)^2"), "expression"),
)


def _other(case: Case) -> Iterator[str]:
    if case.subject in ("words", "expression", "json") and case.others:
        yield case.write(case.others[case.index % len(case.others)])


def _all(case: Case) -> Iterator[str]:
    if case.subject == "words" and len(case.others) > 1:
        middle = len(case.others) // 2
        yield case.write(", ".join([*case.others[:middle], case.gold, *case.others[middle:]]))


OTHERS = (
    ProbeClass("other_text", "the answer of another problem", "words", "false_positive", "some", _other),
    ProbeClass("all_answers", "the answers of all problems in a list", "words", "false_positive", "some", _all),
)
