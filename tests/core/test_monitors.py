"""Monitors of a run: hand-worked figures, and each flag raised and not raised."""

import math
from collections.abc import Sequence

import pytest

from grpo_core.monitors import Flag, HeldOut, KeptGroup, Name, Steps, monitor, rising, spearman


def steps(**series: Sequence[float]) -> Steps:
    """Step metrics from lists of equal length; `__` stands for the stroke in a metric's name."""
    count = len(next(iter(series.values())))
    return [(at + 1, {name.replace("__", "/"): values[at] for name, values in series.items()}) for at in range(count)]


def flag(name: Name, of: Steps, groups: Sequence[KeptGroup] = (), heldout: HeldOut | None = None) -> Flag:
    (found,) = [one for one in monitor(of, groups, heldout) if one.name == name]
    return found


def test_mann_kendall_by_hand() -> None:
    # S 45, variance 10·9·25 / 18 = 125, z = 44 / √125 = 3.9355
    assert rising(range(10)) == pytest.approx(4.15e-5, rel=1e-2)
    assert rising(range(10, 0, -1)) == pytest.approx(1 - 4.15e-5, rel=1e-6)
    # S 2, one tie of two: variance (3·2·11 − 2·1·9) / 18 = 8/3, z = 1 / √(8/3) = 0.6124
    assert rising([1, 1, 2]) == pytest.approx(0.2701, abs=1e-4)
    assert rising([1, 1, 1, 1]) == 0.5
    assert rising(list(range(1000))) < 1e-12, "of a long run by blocks of steps"


def test_spearman_by_hand() -> None:
    assert spearman([(1, 1), (2, 3), (3, 2), (4, 4)]) == pytest.approx(0.8)
    # mean ranks 1.5 1.5 3.5 3.5 against 1 2 3 4: 4 / √(4 · 5)
    assert spearman([(0, 1), (0, 2), (1, 3), (1, 4)]) == pytest.approx(4 / math.sqrt(20))
    assert spearman([(0, 4), (0, 3), (1, 2), (1, 1)]) == pytest.approx(-4 / math.sqrt(20))
    assert spearman([(1, 1), (1, 2)]) is None


RISING = [0.1 * n for n in range(10)]


@pytest.mark.parametrize(
    ("rewards", "heldout", "raised"),
    [
        (RISING, HeldOut(0.0, -0.02), True),
        (RISING, HeldOut(0.1, -0.01), True),  # higher, but not shown to be
        (RISING, HeldOut(0.1, 0.02), False),
        (RISING[::-1], HeldOut(-0.1, -0.2), False),
        (RISING, None, None),
        (RISING[:7], HeldOut(0.0, -0.02), None),
    ],
)
def test_reward_up_and_held_out_not(rewards: Sequence[float], heldout: HeldOut | None, raised: bool | None) -> None:
    found = flag("reward_without_heldout", steps(reward=rewards), heldout=heldout)
    assert found.raised is raised
    assert found.text.startswith("not computed: ") == (raised is None)
    if raised:
        assert found.figure == pytest.approx(4.15e-5, rel=1e-2)


def test_shares_are_of_the_last_fifth() -> None:
    early = steps(completions__clipped_ratio=[0.9] * 8 + [0.1, 0.2], frac_reward_zero_std=[0.0] * 8 + [0.8, 0.9])
    cut, silent = flag("truncation", early), flag("all_equal_groups", early)
    assert (cut.raised, cut.figure) == (False, pytest.approx(0.15))
    assert (silent.raised, silent.figure) == (True, pytest.approx(0.85))
    assert flag("truncation", steps(completions__clipped_ratio=[0.0] * 8 + [0.3, 0.3])).raised
    assert flag("truncation", steps(reward=[1.0])).raised is None


def test_entropy_against_its_start() -> None:
    # the first and the last of ten steps
    assert flag("entropy_collapse", steps(entropy=[2.0] + [1.0] * 8 + [0.39])).raised
    kept = flag("entropy_collapse", steps(entropy=[2.0] + [0.1] * 8 + [0.41]))
    assert (kept.raised, kept.figure) == (False, pytest.approx(0.205))
    assert flag("entropy_collapse", steps(entropy=[0.0, 0.0])).raised is None
    assert flag("entropy_collapse", steps(entropy=[1.0])).raised is None


def test_spikes_in_deviations_from_the_median() -> None:
    # median 1, absolute deviations 0.1 five times and more: the median one is 0.1
    calm = [0.9, 1.0, 1.1] * 3 + [1.2]
    assert flag("gradient_spike", steps(grad_norm=calm)).raised is False
    spiked = flag("gradient_spike", steps(grad_norm=[*calm[:-1], 1.7]))
    assert spiked.raised
    assert spiked.figure == pytest.approx(7.0)
    assert "step 10" in spiked.text
    assert flag("kl_spike", steps(kl=[0.0] * 9 + [5.0])).raised is None, "no spread to measure by"
    assert flag("kl_spike", steps(kl=[0.1, 0.2])).raised is None
    assert flag("kl_spike", steps(reward=calm)).raised is None, "a run without a KL penalty"


def group(step: int, rewards: Sequence[float | None], lengths: Sequence[int], texts: str = "abcd") -> KeptGroup:
    return KeptGroup(step, rewards, lengths, texts)


def test_reward_that_goes_with_length() -> None:
    of = steps(reward=[0.5] * 10)
    long = [group(1, [0, 0, 1, 1], [10, 20, 30, 40])]
    found = flag("length_bias", of, long)
    assert (found.raised, found.figure) == (True, pytest.approx(0.894, abs=1e-3))
    short = [group(1, [1, 1, 0, 0], [10, 20, 30, 40])]
    assert flag("length_bias", of, short).raised
    assert "ρ of reward and length −0.89" in flag("length_bias", of, short).text
    both = [*long, group(2, [1, 1, 0, 0], [10, 20, 30, 40]), group(3, [0, 1, 0, 1], [10, 20, 30, 40])]
    assert flag("length_bias", of, both).raised is False
    assert flag("length_bias", of, [group(1, [1, 1, 1, 1], [1, 2, 3, 4])]).raised is None
    assert flag("length_bias", of, [group(1, [0, 1, None, None], [1, 2, 3, 4])]).raised is None, "two were scored"


def test_repeated_completions_of_the_last_fifth() -> None:
    of = steps(reward=[0.5] * 10)
    late = flag("duplicates", of, [group(10, [0] * 4, [1] * 4, "aaab")])
    assert (late.raised, late.figure) == (True, 0.75)
    assert flag("duplicates", of, [group(9, [0] * 4, [1] * 4, "aabc")]).raised is False, "half is not over half"
    assert flag("duplicates", of, [group(8, [0] * 4, [1] * 4, "aaaa")]).raised is None, "not of the last fifth"


def test_a_run_without_a_step_has_no_flag() -> None:
    found = monitor([], [], None)
    assert len({one.name for one in found}) == 8
    assert all(one.raised is None and one.figure is None for one in found)
