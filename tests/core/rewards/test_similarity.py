"""similarity's measures, on numbers worked by hand, and their alignments against the tables of the textbook."""

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.rewards.text_measures import (
    bleu,
    chrf,
    common_subsequence,
    edit,
    edit_distance,
    ngram_f1,
    ratio,
    rouge_l,
)
from tests.core.rewards.scoring import scored

CAT = ["the", "cat", "sat", "on", "the", "mat"]
SAT = ["the", "cat", "sat", "down"]
POLICE = ["police", "killed", "the", "gunman"]


def test_ratio_and_edit():
    # kitten and sitting: "ittn" in common; replace k and e, add g
    assert common_subsequence("kitten", "sitting") == 4
    assert edit_distance("kitten", "sitting") == 3
    assert ratio("kitten", "sitting") == pytest.approx(8 / 13)
    assert edit("kitten", "sitting") == pytest.approx(1 - 3 / 7)
    assert (ratio("", ""), edit("", ""), ratio("a", ""), edit("", "abc")) == (1, 1, 0, 0)


def test_rouge_l():
    # Lin 2004, section 3.1: "police killed the gunman" against two sentences, LCS 3 and 2 of 4 words each
    assert rouge_l(["police", "kill", "the", "gunman"], POLICE) == 0.75
    assert rouge_l(["the", "gunman", "kill", "police"], POLICE) == 0.5
    assert rouge_l(CAT, ["the", "cat", "lay", "on", "the", "mat"]) == pytest.approx(10 / 12)
    assert rouge_l(CAT, CAT[:3]) == pytest.approx(6 / 9)


def test_ngram_f1():
    # cat, sat in common of 2 and 4 words
    assert ngram_f1(["cat", "sat"], SAT, 1) == pytest.approx(4 / 6)
    # a word counts as often as both have it: the, the, the against the, cat, the: 2 of 3 and 3
    assert ngram_f1(["the"] * 3, ["the", "cat", "the"], 1) == pytest.approx(4 / 6)
    # pairs: cat sat is the one in common of 1 and 3
    assert ngram_f1(["cat", "sat"], SAT, 2) == pytest.approx(2 / 4)
    assert ngram_f1(["cat"], ["cat"], 2) == 0


def test_bleu():
    # p1 = 5/5; pairs 3 of 4, threes 2 of 3, fours 1 of 2, one added above and below: 4/5, 3/4, 2/3; penalty e^(1 − 6/5)
    expected = (4 / 5 * 3 / 4 * 2 / 3) ** 0.25 * math.exp(-0.2)
    assert bleu(["the", "cat", "sat", "on", "mat"], CAT) == pytest.approx(expected)
    # longer than the reference: no penalty; p1 = 6/7, pairs 5 of 6, threes 4 of 5, fours 3 of 4
    assert bleu([*CAT, "today"], CAT) == pytest.approx((6 / 7 * 6 / 7 * 5 / 6 * 4 / 5) ** 0.25)
    # Papineni et al. 2002, section 2.1: "the" seven times has 2 of 7 words right, not 7; no pair: 1/7, 1/6, 1/5
    assert bleu(["the"] * 7, CAT) == pytest.approx((2 / 7 * 1 / 7 * 1 / 6 * 1 / 5) ** 0.25)
    assert (bleu(CAT, CAT), bleu(["cat"], ["cat"]), bleu(["dog"], CAT), bleu([], CAT)) == (1, 1, 0, 0)


def test_chrf():
    # abc and abd: of runs of 1, 2, 3 characters 2/3, 1/2, 0 in common, for both sides
    assert chrf("abc", "abd") == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    # ab of abc: P = (2/2 + 1/1) / 2 = 1, R = (2/3 + 1/2) / 2 = 7/12; F2 = 5 · 1 · 7/12 / (4 + 7/12) = 35/55
    assert chrf("ab", "abc") == pytest.approx(35 / 55)
    # the other way round P = 7/12, R = 1: 5 · 7/12 / (4 · 7/12 + 1) = 35/40: recall counts more
    assert chrf("abc", "ab") == pytest.approx(35 / 40)
    assert (chrf("a b c", "abc"), chrf("", "a"), chrf("a", ""), chrf("x", "y")) == (1, 0, 0, 0)


def _tables(one, other):
    """The longest common subsequence and the edit distance, by the tables of the textbook."""
    common, row = [0] * (len(other) + 1), list(range(len(other) + 1))
    for number, a in enumerate(one, start=1):
        above, last = common[:], row
        row = [number]
        for column, b in enumerate(other):
            common[column + 1] = above[column] + 1 if a == b else max(above[column + 1], common[column])
            row.append(min(last[column + 1] + 1, row[-1] + 1, last[column] + (a != b)))
    return common[-1], row[-1]


@given(st.text("abc", max_size=80), st.text("abcd", max_size=80))
def test_alignments_by_bits_are_those_by_tables(one, other):
    assert (common_subsequence(one, other), edit_distance(one, other)) == _tables(one, other)


def test_alignments_of_all_short_texts():
    texts = ["".join(letters) for size in range(5) for letters in product("ab", repeat=size)]
    for one, other in product(texts, texts):
        assert (common_subsequence(one, other), edit_distance(one, other)) == _tables(one, other)


@given(
    st.sampled_from(["ratio", "edit", "token_f1", "rouge_2", "rouge_l", "bleu", "chrf"]),
    st.text(max_size=60),
    st.text(max_size=60),
)
def test_every_measure_is_a_share(measure, answer, reference):
    score = scored("similarity", answer, reference, measure=measure, extract="whole")
    assert score.error_class == "sample" if score.value is None else 0 <= score.value <= 1 + 1e-9
