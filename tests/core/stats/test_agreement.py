"""Cohen's κ and its interval, against tables worked by hand and published ones."""

import pytest

from grpo_core.stats.agreement import cohen_kappa
from grpo_core.stats.quantiles import Z95
from tests.tables import cases

FIELDS = ("table", "value", "se")


@pytest.mark.parametrize(FIELDS, cases("stats/kappa", *FIELDS))
def test_kappa(table: list[list[int]], value: float | None, se: float | None) -> None:
    pairs = [(a, b) for a, row in enumerate(table) for b, count in enumerate(row) for _ in range(count)]
    kappa = cohen_kappa(pairs)
    assert kappa.n == sum(map(sum, table))
    assert kappa.value == (value if value is None else pytest.approx(value, abs=1e-6))
    if se is None:
        assert (kappa.low, kappa.high) == (None, None)
        assert kappa.reason
        return
    assert kappa.reason == ""
    assert (kappa.low, kappa.high) == pytest.approx((kappa.value - Z95 * se, kappa.value + Z95 * se), abs=2e-4)
    turned = cohen_kappa([(b, a) for a, b in pairs])
    assert (turned.value, turned.low) == pytest.approx((kappa.value, kappa.low))
