"""When rewards of a group count as equal."""

from collections.abc import Sequence

EQUAL_TOLERANCE = 1e-6
"""Rewards of a group whose largest and smallest differ by no more than this, relative to their size where that is
above 1, count as equal. Testing the spread and not the standard deviation keeps float noise in equal rewards from
being blown up by a tiny eps."""


def nearly_equal(values: Sequence[float]) -> bool:
    """Whether rewards count as equal (`EQUAL_TOLERANCE`), so that there is nothing to learn from them."""
    highest, lowest = max(values), min(values)
    return highest - lowest <= EQUAL_TOLERANCE * max(1.0, abs(highest), abs(lowest))
