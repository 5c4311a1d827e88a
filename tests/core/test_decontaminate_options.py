"""Options of multiple-choice items in training texts: copies under another question are found, and what many texts hold
by chance is not."""

from collections.abc import Sequence
from typing import Any

import pytest

from grpo_core.data.decontaminate import overlap
from grpo_core.data.ngram_postings import COMMON_ABOVE

QUESTION = "Which of these best describes what a mutex guarantees to the threads of a program that share it?"
REWORDED = "Consider a lock in concurrent code. Say what it is that holding it promises."
OPTIONS = (
    "only one of them holds it at a time",
    "all of them make progress within a bounded time",
    "none of them is ever interrupted by the scheduler",
    "writes become visible to other machines at once",
)
"""9, 9, 9 and 8 words."""


def lettered(options: Sequence[str], marks: str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ") -> str:
    return "\n".join(f"{mark}) {one}" for mark, one in zip(marks, options, strict=False))


def found(train: str, options: Sequence[str] = OPTIONS, question: str = QUESTION) -> dict[str, Any]:
    """How the item is found in the training text."""
    report = overlap([("t", train)], [("item", question)], {"item": options})
    assert report["counts"]["touched"] == len(report["touched"])
    return report["touched"][0]["by"] if report["touched"] else {}


def same_but_numbers(train: str, options: Sequence[str]) -> dict[str, Any]:
    report = overlap([("t", train)], [("item", QUESTION)], {"item": options})
    assert report["touched"] == []
    return report["same_but_numbers"][0]["by"] if report["same_but_numbers"] else {}


@pytest.mark.parametrize(
    "train",
    [
        f"{REWORDED}\n{lettered(OPTIONS)}\nAnswer with a letter.",
        f"{REWORDED} {lettered(OPTIONS[::-1], '1234')}".upper(),
        f"{REWORDED}\n- {OPTIONS[2]};\n- {OPTIONS[0]};\n- {OPTIONS[3]};\n- {OPTIONS[1]}.",
        "; ".join([OPTIONS[3], OPTIONS[1], OPTIONS[0], OPTIONS[2]]),
    ],
    ids=["copied", "reversed", "listed", "alone"],
)
def test_copied_options_are_found_under_another_question(train: str) -> None:
    assert found(train) == {"options": {"train": "t", "share": 1.0, "texts": 1}}


def test_an_item_that_is_copied_whole_is_found_both_ways() -> None:
    assert set(found(f"{QUESTION}\n{lettered(OPTIONS)}")) == {"ngram13", "ngram8", "options"}


def test_seventy_percent_of_the_words_are_enough() -> None:
    """27 of 35 words are 77 %, 18 are half."""
    assert found(lettered(OPTIONS[:3])) == {"options": {"train": "t", "share": pytest.approx(27 / 35), "texts": 1}}
    assert found(lettered(OPTIONS[:2])) == {}
    reworded = OPTIONS[3].replace("machines", "processors")
    assert found(lettered([*OPTIONS[:3], reworded]))["options"]["share"] == pytest.approx(27 / 35)


def test_an_option_counts_where_all_its_words_stand_in_a_row() -> None:
    apart = [one.replace(" of ", " of any of ").replace(" become ", " may become ") for one in OPTIONS]
    assert found(lettered(apart)) == {}
    assert found(" ".join(" ".join(OPTIONS).split()[::-1])) == {}


def test_the_nearest_text_is_named_and_all_are_counted() -> None:
    train = [("near", lettered(OPTIONS[1:])), ("all", lettered(OPTIONS)), ("again", lettered(OPTIONS[::-1]))]
    (hit,) = overlap([*train, ("other", REWORDED)], [("item", QUESTION)], {"item": OPTIONS})["touched"]
    assert hit == {"id": "item", "by": {"options": {"train": "all", "share": 1.0, "texts": 3}}}


# ---------------------------------------------------------------------- what would be found everywhere


@pytest.mark.parametrize(
    "options",
    [
        ("True", "False"),
        ("A", "B", "C", "D"),
        ("3", "5", "7", "9"),
        tuple(str(number) for number in range(26)),
        ("3 + 4 = 7", "3 - 4 = 7", "3 * 4 = 7", "4 - 3 = 1"),
        ("Yes, it is", "No, it is not", "Both of them"),
        ("Rome", "Paris", "New York City", "All of the above", "None of these"),
    ],
)
def test_short_options_and_numbers_match_nothing(options: Sequence[str]) -> None:
    """12 words at most, and numbers and signs are none."""
    train = f"{REWORDED}\n{lettered(options)}"
    assert found(train, options) == {}
    report = overlap([("t", train)], [("item", QUESTION)], {"item": options})
    assert report["items"]["options_too_short"] == 1


def test_thirteen_words_are_enough_and_twelve_are_not() -> None:
    """Also where the options have 16 words: the two that stand in the text have 12, which is 75 %."""
    colours, trees, more = "red green blue pink grey teal", "oak elm ash fir yew box", "one may never tell"
    assert set(found(f"one: {colours}; two: {trees} bay", (colours, f"{trees} bay"))) == {"options"}
    assert found(f"one: {colours}; two: {trees}", (colours, trees)) == {}
    assert found(f"{colours}, {trees}", (colours, trees, more)) == {}
    assert set(found(f"{colours}, {trees}, {more}", (colours, trees, more))) == {"options"}


def test_of_han_thirteen_words_are_26_characters() -> None:
    long, other = "一二三四五六七八九十甲乙丙丁", "戊己庚辛壬癸子丑寅卯辰巳"
    assert len(long + other) == 26
    assert set(found(f"甲问:{other}。{long}", (long, other), "问")) == {"options"}
    assert found(f"甲问:{other[1:]}。{long}", (long, other[1:]), "问") == {}


def test_a_long_option_alone_is_a_sentence_and_no_copy() -> None:
    long = "the treaty was signed by both parties in the spring after the second war had ended"
    assert found(f"Say in which year {long}.", (long, "never")) == {}
    assert set(found(f"Say in which year {long}, or that it was never.", (long, "never"))) == {"options"}


def test_numbers_in_options_must_be_equal_but_for_the_view_that_masks_them() -> None:
    options = ("the train from Lyon arrives 40 minutes late", "the train from Nantes leaves 12 minutes early")
    train = lettered(options).replace("40", "55")
    assert same_but_numbers(train, options) == {"options": {"train": "t", "share": 1.0, "texts": 1}}
    assert set(found(lettered(options), options)) == {"options"}
    rises = [f"it rises by {n} percent in each of the years" for n in (7, 9, 11)]  # one option, but for the number
    assert same_but_numbers("It rises by 5 percent in each of the years", rises) == {}


def test_options_of_the_whole_suite_are_its_wording() -> None:
    """A scale that every item is answered on stands in training texts that hold none of the items."""
    scale = ("I agree with all of it", "I agree with some of it", "I agree with none of it at all")
    items = [(f"i{n}", f"Statement number {n} on the matter of topic {chr(97 + n)}") for n in range(2 * COMMON_ABOVE)]
    options: dict[str, Sequence[str]] = {name: scale for name, _ in items}
    train = [("t", f"{REWORDED}\n{lettered(scale)}")]
    report = overlap(train, items, options)
    assert report["touched"] == []
    assert (report["items"]["common_options"], report["items"]["options_too_short"]) == (3, 2 * COMMON_ABOVE)
    options["i4"] = (*OPTIONS, scale[0])  # its own are still found, without the one of the scale
    report = overlap([*train, ("copy", lettered(OPTIONS))], items, options)
    assert report["touched"] == [{"id": "i4", "by": {"options": {"train": "copy", "share": 1.0, "texts": 1}}}]


def test_items_with_one_set_of_options_are_all_touched_and_in_order() -> None:
    items = [("b", QUESTION), ("plain", "What is it?"), ("a", REWORDED)]
    report = overlap([("t", lettered(OPTIONS))], items, {"a": OPTIONS[::-1], "b": OPTIONS})
    assert [hit["id"] for hit in report["touched"]] == ["b", "a"]
    assert {name: count for name, count in report["counts"].items() if count} == {"touched": 2, "options": 2}
