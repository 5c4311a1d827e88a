"""Problems whose answer is a letter: other ways to give it, and other letters."""

from collections.abc import Callable, Iterator
from functools import partial

from grpo_core.probe.cases.case import Case, ProbeClass
from grpo_core.probe.report import Family, Rule


def _class(family: Family, rule: Rule, name: str, title: str, make: Callable[[Case, str], str | None]) -> ProbeClass:
    """`make(case, letter)` gives the text of the answer, which is written in the form."""

    def made(case: Case) -> Iterator[str]:
        text = make(case, case.letter) if case.subject == "choice" else None
        if text and text != case.gold and (family == "false_negative" or not case.is_right(text)):
            yield case.write(text)

    return ProbeClass(name, title, "choice", family, rule, made)


_right = partial(_class, "false_negative", "told")
_wrong = partial(_class, "false_positive", "some")


def _letter_and_text(case: Case, letter: str) -> str | None:
    return f"{letter}. {text}" if (text := case.options.get(letter)) else None


def _beyond(case: Case, letter: str) -> str | None:
    last = max(case.letters())
    return chr(ord(last) + 1) if last < "Z" else None


CHOICE = (
    _right("choice_bare", "the letter alone (B)", lambda case, letter: letter),
    _right("choice_brackets", "in brackets ((B))", lambda case, letter: f"({letter})"),
    _right("choice_half_bracket", "with a bracket (B))", lambda case, letter: f"{letter})"),
    _right("choice_point", "with a point (B.)", lambda case, letter: f"{letter}."),
    _right("choice_square", "in square brackets ([B])", lambda case, letter: f"[{letter}]"),
    _right("choice_small", "a small letter (b)", lambda case, letter: letter.lower()),
    _right("choice_option", "“Option B”", lambda case, letter: f"Option {letter}"),
    _right("choice_full_width", "a full-width letter", lambda case, letter: chr(ord(letter) + 0xFEE0)),
    _right("choice_text_after", "the letter and the option's text", _letter_and_text),
    _right("choice_text_alone", "the option's text alone", lambda case, letter: case.options.get(letter)),
    _wrong("choice_next", "the next letter", lambda case, letter: case.wrong_letters()[0]),
    _wrong("choice_other", "another letter", lambda case, letter: case.wrong_letters()[-1]),
    _wrong("choice_small_wrong", "another letter, small", lambda case, letter: case.wrong_letters()[0].lower()),
    _wrong("choice_beyond", "a letter that no option has", _beyond),
    _wrong("choice_all", "all letters", lambda case, letter: " ".join([*case.letters(), case.wrong_letters()[0]])),
    _wrong(
        "choice_two", "two letters, the right one first", lambda case, letter: f"{letter} and {case.wrong_letters()[0]}"
    ),
    _wrong(
        "choice_but_not",
        "another letter, the right one denied",
        lambda case, letter: f"not {letter} but {case.wrong_letters()[0]}",
    ),
    _wrong("choice_in_word", "the letter as the beginning of a word", lambda case, letter: f"{letter}xyzzy"),
    _wrong(
        "choice_other_text",
        "the text of another option",
        lambda case, letter: case.options.get(case.wrong_letters()[0]),
    ),
    _wrong("choice_number", "a number", lambda case, letter: "1"),
)
