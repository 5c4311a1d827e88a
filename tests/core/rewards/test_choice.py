"""choice names an option from a letter or a text, and none from an answer that hedges."""

from typing import Any

import pytest

from grpo_core.rewards.choice import named_option
from tests.core.rewards.scoring import refused, taken, told, value

TEXTS = ["Rome", "Paris", "Oslo", "A new Bonn"]


@pytest.mark.parametrize(
    ("text", "place", "how"),
    [
        ("B", 1, "letter"),
        ("b", 1, "letter"),
        ("(B)", 1, "letter"),
        ("**B**.", 1, "letter"),
        (r"\text{B}", 1, "letter"),
        (r"$\boxed{B}$", 1, "letter"),
        ("paris.", 1, "text"),
        ("  A new\n Bonn", 3, "text"),
        ("B. Paris", 1, "letter"),
        ("(B) Paris", 1, "letter"),
        ("B: because of the Seine", 1, "letter"),
        ("**B** it is", 1, "letter"),
        ("The answer is B", 1, "letter"),
        ("the answer is: **(B)**.", 1, "letter"),
        ("Answer: B\nand that is that", 1, "letter"),
        ("The answer is A. No, the answer is B.", 1, "letter"),
        ("Option A is wrong. The answer is (C).", 2, "letter"),
        ("The answer is (C). Option A is wrong.", 2, "letter"),
        ("I take option B, I think", 1, "letter"),
        ("I take option B", 1, "letter"),
        ("the answer is A bird", None, "names no option"),
        ("the answer is I think", None, "names no option"),
        ("answer: B or C", None, "names several options"),
        ("answer: (B), (C)", None, "names several options"),
        ("answer: B and C", None, "names several options"),
        ("B or C", None, "names no option"),
        ("B, C", None, "names no option"),
        ("BC", None, "names no option"),
        ("A. Rome B. Paris C. Oslo", None, "names several options"),
        ("(A) (B) (C) (D)", None, "names several options"),
        ("C. Paris", None, "the letter C, and the text of B"),
        ("E", None, "names E, which is no option"),
        ("the answer is Z", None, "names Z, which is no option"),
        ("Berlin", None, "names no option"),
        ("", None, "no text"),
        ("  ", None, "no text"),
        ("I think so", None, "names no option"),
        ("Bees are the answer", None, "names no option"),
    ],
)
def test_named_option(text: str, place: int | None, how: str) -> None:
    assert named_option(text, 4, TEXTS) == (place, how)


def test_an_option_whose_text_is_a_letter() -> None:
    assert named_option("A", 3, ["B", "C", "A"]) == (None, "a letter, and the text of another option")
    assert named_option("B", 2, ["A", "B"]) == (1, "letter")
    assert named_option("yes", 2, ["Yes", "yes"]) == (None, "the text of several options")


@pytest.mark.parametrize(
    ("reference", "answer"), [("letter", "B"), ("letter", "(b)"), ("text", "paris"), ("from_0", "1"), ("from_1", "2")]
)
def test_every_way_to_write_the_reference(reference: str, answer: str) -> None:
    given: dict[str, Any] = {"meta": {"choices": TEXTS}, "column": "choices", "reference": reference}
    assert value("choice", "<answer>B</answer>", answer, **given) == 1
    assert value("choice", "<answer>Paris</answer>", answer, **given) == 1
    assert value("choice", "<answer>C</answer>", answer, **given) == 0
    assert value("choice", "B", answer, **given) == 0


@pytest.mark.parametrize(
    ("answer", "meta", "params", "error"),
    [
        ("5", {}, {}, "the reference answer is '5'; expected a letter from A to D"),
        ("E", {}, {}, "expected a letter from A to D"),
        ("E", {}, {"options": 5}, None),
        ("4", {"c": TEXTS}, {"column": "c", "reference": "from_0"}, "expected a number from 0 to 3"),
        ("0", {"c": TEXTS}, {"column": "c", "reference": "from_1"}, "expected a number from 1 to 4"),
        ("²", {"c": TEXTS}, {"column": "c", "reference": "from_1"}, "expected a number from 1 to 4"),
        ("Bern", {"c": TEXTS}, {"column": "c", "reference": "text"}, "expected the text of exactly one option"),
        ("A", {"c": "Rome, Paris"}, {"column": "c"}, "'c' must be a list of 2 to 26 texts"),
        ("A", {"c": ["Rome"]}, {"column": "c"}, "'c' must be a list of 2 to 26 texts"),
        ("A", {"c": [1, 2]}, {"column": "c"}, "'c' must be a list of 2 to 26 texts"),
        ("A", {}, {"column": "c"}, "'c' must be a list of 2 to 26 texts"),
    ],
)
def test_a_problem_without_options_or_answer(
    answer: str, meta: dict[str, Any], params: dict[str, Any], error: str | None
) -> None:
    found = told("choice", "<answer>A</answer>", answer, meta=meta, **params)
    if error is None:
        assert found.error is None
    else:
        assert (found.value, found.error_class) == (None, "sample")
        assert error in (found.error or "")


def test_parameters() -> None:
    assert "needs the column" in refused("choice", reference="text")["reference"]
    assert "options" in refused("choice", options=1)
    assert taken("choice", column="choices").columns == {"choices": "a"}
    assert taken("choice").columns == {}
