"""Several tests at once: p-values adjusted so that one by chance among many does not read as a finding."""

from collections.abc import Sequence


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment (1979, Scandinavian Journal of Statistics 6), in the order given: refusing
    adjusted values above α keeps the chance of any false finding in the family at α or less."""
    adjusted = [0.0] * len(p)
    highest = 0.0
    for rank, index in enumerate(_ascending(p)):
        highest = max(highest, min(1.0, (len(p) - rank) * p[index]))
        adjusted[index] = highest
    return adjusted


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Benjamini and Hochberg's step-up adjustment (1995, JRSS B 57), in the order given: taking adjusted values up
    to q keeps the expected share of false findings among those taken at q or less, for independent tests."""
    adjusted = [0.0] * len(p)
    lowest = 1.0
    for rank, index in reversed([*enumerate(_ascending(p), start=1)]):
        lowest = min(lowest, len(p) / rank * p[index])
        adjusted[index] = lowest
    return adjusted


def _ascending(p: Sequence[float]) -> list[int]:
    if not all(0 <= p_value <= 1 for p_value in p):
        raise ValueError("p-values lie between 0 and 1")
    return sorted(range(len(p)), key=lambda index: p[index])
