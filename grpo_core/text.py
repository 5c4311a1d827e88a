"""Which texts can be kept: PostgreSQL holds neither NUL nor half a surrogate pair. Loads no torch."""

import re
from typing import Any

UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def refuse_unstorable(value: Any) -> Any:
    """`value` as it is. Raises ValueError when it is, or holds in a list or mapping, a text that cannot be kept."""
    match value:
        case str():
            if found := UNSTORABLE.search(value):
                raise ValueError(f"holds the character U+{ord(found[0]):04X}, which cannot be stored; take it out")
        case dict():
            refuse_unstorable([*value, *value.values()])
        case list() | tuple():
            for one in value:
                refuse_unstorable(one)
    return value
