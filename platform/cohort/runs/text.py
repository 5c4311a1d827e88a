"""Text from workers, made storable. Says what is replaced, so that nobody takes a stored text for the exact bytes."""

import re

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def storable(text: str) -> str:
    """PostgreSQL holds neither NUL nor half a surrogate pair: each becomes the visible U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)
