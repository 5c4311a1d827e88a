"""Monitors of a run: hand-worked figures, and each flag raised and not raised."""

import math

import pytest

from grpo_core.monitors.figures import rising
from grpo_core.monitors.recorded import HeldOut, KeptGroup, monitor
from grpo_core.stats.correlation import spearman
from tests.tables import cases


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


@pytest.mark.parametrize(
    ("flag", "steps", "groups", "heldout", "raised", "figure"),
    cases("core/monitors", "flag", "steps", "groups", "heldout", "raised", "figure"),
)
def test_a_flag_of_a_run(flag, steps, groups, heldout, raised, figure):
    """Metrics by name, a value each step; groups as step, rewards, lengths and texts."""
    rows = [dict(zip(steps, values, strict=True)) for values in zip(*steps.values(), strict=True)]
    kept = [KeptGroup(*group) for group in groups or []]
    change = HeldOut(*heldout) if heldout else None
    (result,) = [row for row in monitor(list(enumerate(rows, start=1)), kept, change) if row.name == flag]
    assert result.raised is raised
    assert result.figure == (None if figure is None else pytest.approx(figure, rel=1e-5))
    assert result.text.startswith("not computed: ") == (raised is None)


def test_a_run_without_a_step_has_no_flag() -> None:
    flags = monitor([], [], None)
    assert len({flag.name for flag in flags}) == 8
    assert all(flag.raised is None and flag.figure is None for flag in flags)
