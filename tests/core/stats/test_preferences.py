"""What is said of a reward model on held-out pairs, worked by hand."""

import math

import pytest

from grpo_core.evaluate.preference_report import in_words, table
from grpo_core.stats.preferences import BINS, RankedPair, accuracy, preference_facts
from grpo_core.stats.quantiles import wilson


def pair(certainty: float, right: bool, longer: int = 0, cluster: str = "") -> RankedPair:
    """Ranked with this certainty: |difference| = log(c / (1 − c))."""
    difference = math.log(certainty / (1 - certainty))
    return RankedPair(difference if right else -difference, longer, cluster)


def alone(pairs: list[RankedPair]) -> list[RankedPair]:
    """Each pair of a prompt of its own."""
    return [RankedPair(own.difference, own.longer, str(number)) for number, own in enumerate(pairs)]


def test_accuracy_counts_ties_half_and_has_wilsons_interval() -> None:
    pairs = alone([pair(0.9, True)] * 6 + [pair(0.9, False)] * 3 + [RankedPair(0.0, 0, "")])
    own = accuracy(pairs)
    assert (own["share"], own["pairs"], own["prompts"]) == (0.65, 10, 10)
    expected = wilson(6.5, 10)
    assert (own["low"], own["high"]) == pytest.approx((expected.low, expected.high))


def test_pairs_of_one_prompt_are_no_independent_evidence() -> None:
    """Four prompts whose five pairs all agree are worth four pairs: equal clusters' design effect is their size."""
    rights = [True, True, False, True]
    pairs = [pair(0.8, right, cluster=str(number)) for number, right in enumerate(rights) for _ in range(5)]
    own = accuracy(pairs)
    assert (own["share"], own["pairs"], own["prompts"]) == (0.75, 20, 4)
    expected = wilson(3, 4)
    assert (own["low"], own["high"]) == pytest.approx((expected.low, expected.high))


def test_calibration_is_of_the_certainty_in_the_one_ranked_above() -> None:
    """Of four pairs at 0.62 three are right, of two at 0.97 one: Σ n/6·|certainty − share| = 4/6·0.13 + 2/6·0.47."""
    pairs = [pair(0.62, True)] * 3 + [pair(0.62, False), pair(0.97, True), pair(0.97, False)]
    facts = preference_facts(alone(pairs), [0.0])["calibration"]
    assert facts["ece"] == pytest.approx(4 / 6 * 0.13 + 2 / 6 * 0.47)
    first, second = facts["bins"]
    assert (first["from"], first["to"], first["pairs"], first["right"]) == pytest.approx((0.6, 0.65, 4, 0.75))
    assert (second["from"], second["to"], second["pairs"], second["right"]) == pytest.approx((0.95, 1.0, 2, 0.5))
    assert second["certainty"] == pytest.approx(0.97)


def test_a_tie_is_in_the_first_bin_and_certainty_itself_in_the_last() -> None:
    facts = preference_facts(alone([RankedPair(0.0, 0, ""), RankedPair(1e4, 0, "")]), [0.0])["calibration"]
    assert [(part["from"], part["to"]) for part in facts["bins"]] == [(0.5, 0.55), (0.95, 1.0)]
    assert (BINS, facts["ece"]) == (10, 0.0)


def test_length_bias() -> None:
    """Differences 3, 2, −1, −2 with 10, 5, −5, −10 tokens more: the ranks are the same, and right only if longer."""
    pairs = alone([RankedPair(3, 10, ""), RankedPair(2, 5, ""), RankedPair(-1, -5, ""), RankedPair(-2, -10, "")])
    length = preference_facts(pairs, [0.0])["length"]
    assert length["rho"] == pytest.approx(1.0)
    assert (length["chosen_longer"]["share"], length["chosen_longer"]["pairs"]) == (1.0, 2)
    assert (length["chosen_shorter"]["share"], length["chosen_shorter"]["pairs"]) == (0.0, 2)
    assert length["equal"] == 0
    even = preference_facts(alone([RankedPair(3, 0, ""), RankedPair(-2, 0, "")]), [0.0])["length"]
    assert even == {"rho": None, "chosen_shorter": None, "chosen_longer": None, "equal": 2}


def test_rewards_have_their_mean_and_population_deviation() -> None:
    assert preference_facts([RankedPair(1, 0, "a")], [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0])["rewards"] == {
        "mean": 5.0,
        "std": 2.0,
        "n": 8,
    }


def test_the_report_says_them() -> None:
    facts = preference_facts(alone([pair(0.9, True, 3)] * 3 + [pair(0.6, False, -2)]), [1.0, 3.0])
    assert "75 %" in in_words(facts)
    lines = table(facts).splitlines()
    assert [line.split("  ")[0] for line in lines[:4]] == [
        "held-out pairs",
        "all",
        "chosen is shorter",
        "chosen is longer",
    ]
    assert lines[-1] == "expected calibration error: 0.225"
