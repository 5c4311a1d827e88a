"""length and soft_overlong pay by formulas; the numbers here are worked by hand."""

import math

import pytest

from grpo_core.rewards.length import cosine, linear
from tests.core.rewards.scoring import refused, taken, told, value


@pytest.mark.parametrize(
    ("length", "paid"),
    [(0, 0.0), (1, 0.25), (3, 0.75), (4, 1.0), (8, 1.0), (9, 0.75), (10, 0.5), (12, 0.0), (13, 0.0), (10**7, 0.0)],
)
def test_linear(length: int, paid: float) -> None:
    assert linear(length, least=4, most=8, limit=12) == paid


def test_linear_without_a_least_length_pays_an_empty_text() -> None:
    assert linear(0, least=0, most=8, limit=12) == 1


@pytest.mark.parametrize(
    ("length", "paid"),
    [
        (0, 2.0),  # cos 0 = 1: all of the short value
        (250, 1.5 + 0.5 * math.sqrt(0.5)),  # cos 45° = √½: 1 + ½ (1 + √½)
        (500, 1.5),  # cos 90° = 0
        (1000 / 3, 1.75),  # cos 60° = ½: 1 + ½ · 1.5
        (2000 / 3, 1.25),  # cos 120° = −½
        (1000, 1.0),  # cos 180° = −1
    ],
)
def test_cosine_with_the_paper_s_values_for_a_right_answer(length: float, paid: float) -> None:
    assert cosine(length, 1000, short=2.0, long=1.0) == pytest.approx(paid, abs=1e-12)  # type: ignore[arg-type]


def test_cosine_with_the_paper_s_values_for_a_wrong_answer() -> None:
    assert cosine(0, 1000, short=-10.0, long=0.0) == -10
    assert cosine(500, 1000, short=-10.0, long=0.0) == pytest.approx(-5)
    assert cosine(1000, 1000, short=-10.0, long=0.0) == pytest.approx(0)


def test_units() -> None:
    text = "two words\n"
    assert told("length", text, unit="words", most=1, limit=3).detail == "2 words"
    assert value("length", text, unit="words", most=1, limit=3) == 0.5
    assert told("length", text, unit="characters").detail == "10 characters"
    assert told("length", text, tokens=3).detail == "3 tokens"
    found = told("length", text)
    assert (found.value, found.error_class) == (None, "sample")
    assert "count words or characters" in (found.error or "")


def test_cosine_asks_another_kind_what_is_right() -> None:
    curve = {"shape": "cosine", "unit": "characters", "limit": 100}

    def paid(completion: str, answer: str, **params: object) -> float | None:
        return value("length", completion.ljust(50), answer, **curve, **params)

    assert paid("<answer>82</answer>", "82.0") == pytest.approx(0.75)
    assert paid("<answer>83</answer>", "82") == pytest.approx(-0.5)
    assert paid("#### 82", "82", right_params={"extract": "hashes"}) == pytest.approx(0.75)
    assert paid("<answer>Paris</answer>", "Paris", right_by="exact") == pytest.approx(0.75)
    assert paid("<answer>(b)</answer>", "B", right_by="choice") == pytest.approx(0.75)
    assert paid("<answer>82</answer>".ljust(100), "82") == -1
    assert paid("<answer>82</answer>".ljust(101), "82") == -1
    found = told("length", "82", "no number", **curve)  # type: ignore[arg-type]
    assert (found.value, found.error_class) == (None, "sample")


def test_parameters_of_length() -> None:
    assert refused("length", least=10, most=5)["limit"] == "must be in this order: least 10, most 5, limit 1024"
    assert "limit" in refused("length", most=1024, limit=1024)
    assert refused("length", shape="cosine", right_params={"extract": "tag"})["right_params"].startswith("extract:")
    wrong = refused("length", shape="cosine", right_by="choice", right_params={"reference": "text"})
    assert wrong["right_params"].startswith("reference: an answer that is an option's text")
    rubric = taken("length", shape="cosine", right_by="choice", right_params={"column": "choices"})
    assert rubric.columns == {"choices": "a"}
    assert taken("length").columns == {}


@pytest.mark.parametrize(
    ("tokens", "paid"),
    [
        (1, 0.0),
        (16_384, 0.0),
        (16_385, -1 / 4096),
        (17_408, -0.25),
        (18_432, -0.5),
        (20_479, -4095 / 4096),
        (20_480, -1.0),
        (20_481, -1.0),
    ],
)
def test_soft_overlong_with_the_paper_s_lengths(tokens: int, paid: float) -> None:
    found = told("soft_overlong", "x", tokens=tokens)
    assert (found.value, found.passed) == (paid, paid == 0)


def test_soft_overlong_counts_tokens_only() -> None:
    found = told("soft_overlong", "x")
    assert (found.value, found.error_class) == (None, "sample")
    assert value("soft_overlong", "x", tokens=75, max_tokens=100, buffer_tokens=50) == -0.5
    assert value("soft_overlong", "x", tokens=50, max_tokens=100, buffer_tokens=100) == -0.5
    assert "must be at most max_tokens" in refused("soft_overlong", max_tokens=10, buffer_tokens=11)["buffer_tokens"]
    assert "buffer_tokens" in refused("soft_overlong", buffer_tokens=0)
