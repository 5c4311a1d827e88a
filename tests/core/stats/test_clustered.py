"""Clustered errors and the bootstrap, against sums worked by hand and against each other."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.stats.bootstrap import bootstrap
from grpo_core.stats.clustered import clustered, clustered_error, effective_n

scores = st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.sampled_from([0.0, 0.25, 0.5, 1.0])), min_size=1)


def test_clustered_error_by_hand():
    """Differences 1, 1 | 0 | −1, 0: mean 0.2. Residual sums of the clusters: 1.6, −0.2, −1.4.
    √(2.56 + 0.04 + 1.96)/5 = √4.56/5 = 0.427083; one by one √(0.64·2 + 0.04·2 + 1.44)/5 = √2.8/5 = 0.334664."""
    differences = [1.0, 1.0, 0.0, -1.0, 0.0]
    assert clustered_error(differences, "aabcc") == pytest.approx(0.4270831, abs=1e-7)
    assert clustered_error(differences, range(5)) == pytest.approx(0.3346640, abs=1e-7)


def test_clustered_interval_by_hand():
    """The same with two pseudo-clusters of 5/3: centre 1/(5 + 10/3) = 0.12. Residual sums 1.76, −0.12, −1.24: squares
    3.0976 + 0.0144 + 1.5376 = 4.6496; pseudo 25/9·(1 + 2·0.0144) = 2.857778; √7.507378/8.333333 = 0.328793.
    t with 2 degrees 4.302653."""
    result = clustered([1.0, 1.0, 0.0, -1.0, 0.0], "aabcc")
    assert (result.units, result.difference) == (3, 0.2)
    assert result.centre == pytest.approx(0.12)
    assert result.standard_error == pytest.approx(0.3287957, abs=1e-6)
    assert (result.low, result.high) == (-1.0, 1.0)  # 0.12 ∓ 1.4147, cut
    assert result.noun == "clusters"


@given(scores)
def test_problems_on_their_own_give_agresti_and_mins_error(pairs):
    """Half a pair added to each of the four cells (Agresti and Min 2005), worked out from the sums."""
    differences = [b - a for a, b in pairs]
    total = len(differences) + 2
    centre = math.fsum(differences) / total
    square = (math.fsum(d * d for d in differences) + 1) / total
    result = clustered(differences, None)
    assert result.standard_error == pytest.approx(math.sqrt((square - centre * centre) / total), abs=1e-12)
    assert result.centre == pytest.approx(centre, abs=1e-12)
    assert result.noun == "items"
    assert clustered(differences, range(len(pairs))) == result


@given(scores, st.randoms(use_true_random=False))
def test_the_order_of_problems_does_not_matter(pairs, order):
    with_clusters = [(b - a, index % 3) for index, (a, b) in enumerate(pairs)]
    shuffled = order.sample(with_clusters, len(with_clusters))
    first, second = (clustered(*map(list, zip(*order, strict=True))) for order in (with_clusters, shuffled))
    assert first == second


def test_copies_add_nothing():
    """Each problem ten times over, as its own cluster, is worth what it is worth once."""
    differences = [1.0, 0.0, -1.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    once = clustered(differences, None)
    tenfold = clustered(differences * 10, [*range(8)] * 10)
    assert tenfold.standard_error == pytest.approx(once.standard_error)
    assert (tenfold.low, tenfold.units) == (pytest.approx(once.low), 8)
    assert effective_n([1.0, 0.0, 1.0, 1.0] * 10, [*range(4)] * 10) == pytest.approx(4)


def test_effective_n():
    """Scores 1 1 | 0 0 | 1 0: mean ½, residual sums 1, −1, 0: variance 2/36 against plain 6·¼/36: design effect 4/3."""
    assert effective_n([1, 1, 0, 0, 1, 0], "aabbcc") == pytest.approx(6 / (2 / 1.5))
    assert effective_n([1, 0, 1, 0], "aabb") == 4  # what evens out within clusters is not counted for more than n
    assert effective_n([1, 1, 1, 1], "aabb") == 2


def test_the_bootstrap_of_few_problems_by_hand():
    """0 and 1 drawn twice: means 0, ½, 1 with chances ¼, ½, ¼, so every point asked for is 0 or 1. A few equal ones are
    no certainty when padded."""
    assert bootstrap([0.1] * 3, seed=1).low == pytest.approx(0.1)
    padded = bootstrap([0.1] * 3, seed=1, padded=True)
    assert padded.low < 0 < padded.high
    result = bootstrap([0.0, 1.0], seed=7)
    assert (result.low, result.p, result.high) == (0, pytest.approx(0.5, abs=0.03), 1)
    assert (result.resamples, result.seed) == (9999, 7)


def test_a_seed_gives_the_same_interval_everywhere():
    """Written down once: a change of these numbers would make every sealed record differ from its check."""
    differences = [((index * 37) % 41 - 20) / 20 for index in range(41)]
    result = bootstrap(differences, seed=20261122)
    assert (result.low, result.high) == (-0.1792682926829357, 0.18170731707316629)
    grouped = bootstrap(differences, [index % 7 for index in range(41)], seed=20261122, padded=True)
    assert (grouped.low, grouped.high) == (-0.23670212765957446, 0.23010899182562003)
    many = bootstrap(differences * 20, seed=20261122)
    assert (many.low, many.high) == (-0.0407911001236094, 0.04075215782984217)


def test_the_bootstrap_agrees_with_the_error_it_estimates():
    """σ of 0, ±½, … known: the 95 % interval is the mean ± 1.96 σ/√n, to the 4 % that 9,999 resamples leave."""
    draw = random.Random(5)
    differences = [draw.choice([-1.0, -0.5, 0.0, 0.0, 0.25, 1.0]) for _ in range(400)]
    half = 1.96 * clustered_error(differences, None)
    result = bootstrap(differences, seed=3)
    assert (result.high - result.low) / 2 == pytest.approx(half, rel=0.04)
    together = [index // 4 for index in range(400)]
    correlated = [differences[index // 4] for index in range(400)]
    wide = bootstrap(correlated, together, seed=3)
    assert (wide.high - wide.low) / 2 == pytest.approx(1.96 * clustered_error(correlated, together), rel=0.06)
    assert wide.high - wide.low > 1.8 * (bootstrap(correlated, seed=3).high - bootstrap(correlated, seed=3).low)


def test_more_units_than_500_are_resampled_in_groups():
    draw = random.Random(6)
    differences = [draw.choice([-1.0, 0.0, 0.0, 0.5]) for _ in range(20_000)]
    result = bootstrap(differences, seed=4)
    assert (result.high - result.low) / 2 == pytest.approx(1.96 * clustered_error(differences, None), rel=0.1)
    assert (result.high + result.low) / 2 == pytest.approx(math.fsum(differences) / 20_000, abs=1e-3)


def test_what_is_refused():
    for resamples in (0, 1000, 10_000):
        with pytest.raises(ValueError, match="one less than a multiple of 40"):
            bootstrap([0.0, 1.0], seed=1, resamples=resamples)
    for differences, clusters in (([], []), ([], None), ([1.0], ["a", "b"])):
        with pytest.raises(ValueError, match="difference"):
            clustered(differences, clusters)
