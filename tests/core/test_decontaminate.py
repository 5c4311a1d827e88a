"""Evaluation items and their options in training texts: planted copies are found by the right methods, and only they;
what many texts hold by chance is not."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.data.decontaminate import overlap
from grpo_core.data.minhash import Bands, signature
from grpo_core.data.ngram_view import COMMON_ABOVE
from grpo_core.data.plain_words import masked, units, writing
from grpo_core.errors import DataError
from tests.tables import cases

STORY = (
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many clips did "
    "Natalia sell altogether in April and May?"
)
OTHER = "A robe takes 2 bolts of blue fiber and half that much white fiber. How many bolts in total does it take?"
THIRD = "Weng earns $12 an hour for babysitting. Yesterday, she just did 50 minutes of it. How much did she earn then?"
WORDS = [
    *("river", "stone", "lamp", "green", "seven", "window", "carpet", "monday"),
    *("engine", "violet", "paper", "cloud", "salt", "ladder", "bread", "copper"),
]


def by(report: dict[str, Any], view: str = "touched") -> dict[str, dict[str, Any]]:
    return {hit["id"]: hit["by"] for hit in report[view]}


def shares(items: list[dict[str, Any]]) -> dict[str, float]:
    """{method: share} of the only item."""
    return {method: round(hit["share"], 4) for item in items for method, hit in item["by"].items()}


# ---------------------------------------------------------------------- what counts as the same words


@pytest.mark.parametrize(("text", "words"), cases("data/units", "text", "words"))
def test_units(text: str, words: str) -> None:
    assert units(text) == words.split()


def test_signs_of_arithmetic_keep_problems_apart() -> None:
    assert units("what is 37 + 45?") != units("what is 37 - 45?")
    assert masked(units("what is 37 + 45?")) == masked(units("what is 1,200 + 3.5?"))


def test_writing() -> None:
    for text in (STORY, "ভাত খাই", ""):
        assert writing(units(text)) == "spaced"
    assert writing(units("日本語のテキスト 2")) == "han_kana"
    assert writing(units("ร้านอาหาร")) == "southeast_asian"


@given(st.text())
def test_any_text_has_units_that_are_their_own_units(text: str) -> None:
    words = units(text)
    assert all(words)
    assert masked(masked(words)) == masked(words)


# ---------------------------------------------------------------------- what is found


@pytest.mark.parametrize(
    ("train", "item", "touched", "same_but_numbers"),
    cases("data/overlap_texts", "train", "item", "touched", "same_but_numbers"),
)
def test_an_item_in_a_training_text(train, item, touched, same_but_numbers):
    """STORY, where the case names none, and an item that has nothing to do with it.

    One changed word: 31 words have 27 5-grams and 19 13-grams; 26 are in common of 28 in either, and 18. Of Han, 26
    characters stand for 13 words.
    """
    report = overlap([("t", train)], [("item", item or STORY), ("else", OTHER)])
    assert {hit["id"] for hit in report["touched"] + report["same_but_numbers"]} <= {"item"}
    assert shares(report["touched"]) == (touched or {})
    assert shares(report["same_but_numbers"]) == (same_but_numbers or {})


def test_eight_word_sequences_count_from_70_percent_over_all_training_texts() -> None:
    """17 words have 10 8-grams. Words 1 to 10 hold 3 of them, 4 to 13 three more, 7 to 15 two, of which one is new."""
    words = [*WORDS, "last"]
    item = " ".join(words)
    pieces = [("a", " ".join(words[:10])), ("b", " ".join(words[3:13])), ("c", " ".join(words[6:15]))]
    others = [("item", item), ("else", OTHER)]
    assert by(overlap(pieces[:2], others)) == {}  # 6 of 10
    assert by(overlap(pieces, others)) == {"item": {"ngram8": {"train": "a", "share": 0.8, "texts": 3}}}


def test_other_numbers_are_the_same_but_for_numbers() -> None:
    report = overlap([("t", STORY.replace("48", "1,250.5"))], [("item", STORY), ("else", OTHER)])
    assert set(by(report).get("item", {})) == {"ngram13", "ngram8"}  # 26 words after the number are as they were
    short = overlap([("t", "What is 12 + 99?")], [("item", "what is 37 + 45?"), ("minus", "what is 37 - 45?")])
    assert short["touched"] == []
    assert by(short, "same_but_numbers")["item"]["exact"] == {"train": "t", "share": 1.0, "texts": 1}
    assert list(by(short, "same_but_numbers")) == ["item"]
    assert short["counts"]["same_but_numbers"] == 1


def test_the_nearest_text_is_named_and_all_are_counted() -> None:
    train = [("far", STORY.split(" in April")[0] + " somewhere else"), ("near", STORY.replace("May?", "June?"))]
    train += [("same", STORY), ("again", STORY.lower())]
    hits = by(overlap(train, [("item", STORY), ("else", OTHER)]))["item"]
    assert hits["exact"] == {"train": "same", "share": 1.0, "texts": 2}
    assert hits["minhash"] == {"train": "same", "share": 1.0, "texts": 3}
    assert (hits["ngram13"]["train"], hits["ngram13"]["texts"]) == ("same", 3)


def test_items_with_one_text_are_all_touched_and_in_order() -> None:
    items = [("b", STORY), ("x", OTHER), ("a", STORY.upper()), ("y", THIRD)]
    assert list(by(overlap([("t", STORY)], items))) == ["b", "a"]


def test_the_suites_wording_is_no_finding() -> None:
    """A sentence that all items begin with stands in the training texts too; the items themselves do not."""
    head = "Solve the following problem step by step and write the final answer as a single number in a box: "
    rng = random.Random(3)
    items = [(f"i{n}", head + " ".join(rng.choices(WORDS, k=14))) for n in range(2 * COMMON_ABOVE)]
    train = [(f"t{n}", head + " ".join(rng.choices(WORDS, k=14))) for n in range(50)]
    report = overlap(train, items)
    assert report["touched"] == []
    assert report["items"]["common_ngrams"]["5"] == 15  # of the 19 words
    assert report["items"]["without_own_ngram"] == {"13": 0, "8": 0, "5": 0}
    planted = overlap([*train, ("copy", items[4][1])], items)
    assert set(by(planted)["i4"]) == {"exact", "ngram13", "ngram8", "minhash"}
    assert planted["counts"]["touched"] == 1


def test_what_cannot_be_compared_is_counted(golden: Callable[[str, Any], None]) -> None:
    """The whole report, with how it was made."""
    report = overlap([("t", "…"), ("u", STORY)], [("empty", "🙂 ?!"), ("short", "What is it?"), ("item", STORY)])
    assert report["train"] == {"texts": 2, "without_words": 1}
    assert report["items"]["without_words"] == ["empty"]
    assert report["items"]["without_own_ngram"] == {"13": 1, "8": 1, "5": 1}
    assert set(by(report)) == {"item"}
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    golden("overlap_report.json", report)


def test_nothing_to_compare_and_an_id_twice() -> None:
    assert overlap([], [("item", STORY)])["counts"]["touched"] == 0
    assert overlap([("t", STORY)], [])["items"]["texts"] == 0
    with pytest.raises(DataError, match="'a'"):
        overlap([], [("a", STORY), ("a", OTHER)])


@given(st.data())
def test_similarity_and_13_words_are_what_a_plain_count_gives(data: st.DataObject) -> None:
    """Against the definitions, written out with sets of tuples, on texts made alike on purpose."""
    text = st.lists(st.sampled_from(WORDS), min_size=1, max_size=40)
    items = [(f"i{n}", words) for n, words in enumerate(data.draw(st.lists(text, min_size=1, max_size=2)))]
    train = []
    for n in range(data.draw(st.integers(0, 4))):
        words = list(data.draw(st.sampled_from(items))[1])
        for _ in range(data.draw(st.integers(0, 2))):
            words[data.draw(st.integers(0, len(words) - 1))] = "changed"
        train.append((f"t{n}", words))
    report = by(overlap([(n, " ".join(w)) for n, w in train], [(n, " ".join(w)) for n, w in items]))

    def grams(words: list[str], n: int) -> set[tuple[str, ...]]:
        return {tuple(words[at : at + n]) for at in range(len(words) - n + 1)}

    for name, words in items:
        near = [
            len(grams(other, 5) & grams(words, 5)) / len(grams(other, 5) | grams(words, 5))
            for _, other in train
            if grams(other, 5) | grams(words, 5)
        ]
        hits = report.get(name, {})
        assert ("minhash" in hits) == any(share >= 0.8 for share in near)
        assert ("exact" in hits) == any(other == words for _, other in train)
        assert ("ngram13" in hits) == any(grams(other, 13) & grams(words, 13) for _, other in train)
        if "minhash" in hits:
            assert hits["minhash"]["share"] == pytest.approx(max(near))


# ---------------------------------------------------------------------- MinHash itself


def test_equal_signature_places_estimate_similarity() -> None:
    """60 of 100 in common: Jaccard 0.6; 128 permutations leave a standard error of 0.043."""
    mine, other = {str(n) for n in range(80)}, {str(n) for n in range(20, 100)}
    same = sum(a == b for a, b in zip(signature(mine), signature(other), strict=True))
    assert same / 128 == pytest.approx(0.6, abs=0.13)


def test_a_signature_never_changes() -> None:
    """Written down once: another value would find other candidates than the report's parameters promise."""
    assert signature(["a b c d e"])[:2] == [1464200985825173069, 37258171304291699]
    bands = Bands()
    bands.add(3, {"a b c d e", "b c d e f"})
    assert bands.near({"b c d e f", "a b c d e"}) == {3}
    assert bands.near({"x"}) == set()


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
    return "\n".join(f"{mark}) {option}" for mark, option in zip(marks, options, strict=False))


@pytest.mark.parametrize(
    ("train", "item", "options", "touched", "same_but_numbers", "too_short"),
    cases("data/overlap_options", "train", "item", "options", "touched", "same_but_numbers", "too_short"),
)
def test_options_in_a_training_text(train, item, options, touched, same_but_numbers, too_short):
    """QUESTION and OPTIONS, where the case names none. Three of those have 27 of 35 words, which is 77 %."""
    report = overlap([("t", train)], [("item", item or QUESTION)], {"item": options or OPTIONS})
    assert report["counts"]["touched"] == len(report["touched"])
    assert shares(report["touched"]) == (touched or {})
    assert shares(report["same_but_numbers"]) == (same_but_numbers or {})
    assert report["items"]["options_too_short"] == (too_short or 0)


def test_the_nearest_text_with_the_options_is_named_and_all_are_counted() -> None:
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
