"""How numbers are written on pages, and read from addresses.

Records have their own way (governance.words): it belongs to the format of a card and may not change with the pages.
"""

MINUS = "\N{MINUS SIGN}"


def minus(text: str) -> str:
    """A real minus sign for each hyphen of a written number."""
    return text.replace("-", MINUS)


def number(value: float, digits: int) -> str:
    """At most `digits` significant digits, as people write them: 0.04, 2, 1e−6."""
    mantissa, e, exponent = f"{value or 0:.{digits}g}".partition("e")
    return minus(mantissa + (f"e{int(exponent)}" if e else ""))


def natural(text: str | None) -> int | None:
    """An id, a place or a count from an address; what is none, or is larger than any id, counts as not given."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else None
