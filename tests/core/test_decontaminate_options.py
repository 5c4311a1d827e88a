"""Options of multiple-choice items in training texts: copies under another question are found, and what many texts hold
by chance is not."""

from collections.abc import Sequence
from typing import Any

import pytest

from grpo_core.data.decontaminate import overlap
from grpo_core.data.ngram_postings import COMMON_ABOVE
from tests.tables import cases

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


def shares(found: list[dict[str, Any]]) -> dict[str, float]:
    """{method: share} of the only item."""
    return {method: round(hit["share"], 4) for one in found for method, hit in one["by"].items()}


@pytest.mark.parametrize(
    ("train", "item", "options", "touched", "same_but_numbers", "too_short"),
    cases("data/overlap_options", "train", "item", "options", "touched", "same_but_numbers", "too_short"),
)
def test_options_in_a_training_text(
    train: str,
    item: str | None,
    options: list[str] | None,
    touched: dict[str, float] | None,
    same_but_numbers: dict[str, float] | None,
    too_short: int | None,
) -> None:
    """QUESTION and OPTIONS, where the case names none. Three of those have 27 of 35 words, which is 77 %."""
    report = overlap([("t", train)], [("item", item or QUESTION)], {"item": options or OPTIONS})
    assert report["counts"]["touched"] == len(report["touched"])
    assert shares(report["touched"]) == (touched or {})
    assert shares(report["same_but_numbers"]) == (same_but_numbers or {})
    assert report["items"]["options_too_short"] == (too_short or 0)


def test_the_nearest_text_is_named_and_all_are_counted() -> None:
    train = [("near", lettered(OPTIONS[1:])), ("all", lettered(OPTIONS)), ("again", lettered(OPTIONS[::-1]))]
    (hit,) = overlap([*train, ("other", REWORDED)], [("item", QUESTION)], {"item": OPTIONS})["touched"]
    assert hit == {"id": "item", "by": {"options": {"train": "all", "share": 1.0, "texts": 3}}}


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
