"""Adjusted p-values against published examples."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.stats import benjamini_hochberg, holm

ps = st.lists(st.floats(0, 1), max_size=20)


def test_holm_by_hand():
    """0.01·4, 0.02·3 = 0.06, then 0.03·2 = 0.06, then max(0.06, 0.04): the steps never go down."""
    assert holm([0.01, 0.04, 0.03, 0.02]) == pytest.approx([0.04, 0.06, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_benjamini_and_hochbergs_own_example():
    """The 15 p-values of their paper (1995, section 3.3): 4 are taken at q 0.05, Holm takes 3."""
    p = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590]
    p.append(1.0)
    found = benjamini_hochberg(p)
    assert [one <= 0.05 for one in found].count(True) == 4
    assert found[:4] == pytest.approx([0.0015, 0.0030, 0.0095, 0.035625])  # 15/i·p
    assert found[4] == pytest.approx(0.0603)
    assert [one <= 0.05 for one in holm(p)].count(True) == 3


@given(ps)
def test_adjusting_keeps_order_and_does_not_depend_on_it(p):
    for adjust in (holm, benjamini_hochberg):
        found = adjust(p)
        assert all(one >= raw - 1e-15 and one <= 1 for one, raw in zip(found, p, strict=True))
        assert [one for _, one in sorted(zip(p, found, strict=True))] == sorted(found)
        assert adjust(p[::-1]) == pytest.approx(found[::-1])
    assert all(strict >= loose - 1e-12 for strict, loose in zip(holm(p), benjamini_hochberg(p), strict=True))


def test_what_is_no_p_is_refused():
    for adjust in (holm, benjamini_hochberg):
        with pytest.raises(ValueError, match="between 0 and 1"):
            adjust([0.5, 1.5])
