"""Numbers in words."""

import pytest

from grpo_core.text import format_bytes, format_duration, format_percent


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (4e-5, "40 µs"),
        (999.6e-6, "1 ms"),
        (0.0025, "2.5 ms"),
        (0.9996, "1 s"),
        (3.25, "3.25 s"),
        (75.2, "75.2 s"),
        (119.6, "2 min"),
        (720, "12 min"),
        (7199, "2 h 0 min"),
        (12_000, "3 h 20 min"),
    ],
)
def test_a_duration_has_the_unit_that_fits(seconds: float, words: str) -> None:
    assert format_duration(seconds) == words


def test_bytes_in_decimal_units() -> None:
    assert [format_bytes(size) for size in (999, 1500, 5 * 10**9)] == ["999 bytes", "1.5 kB", "5.0 GB"]


def test_a_share_is_percent() -> None:
    assert format_percent(0.125) == "12.5 %"
