"""Text from people and workers, made storable. Says what is replaced, so that nobody takes it for the exact bytes."""

from grpo_core.text import UNSTORABLE


def storable(text: str) -> str:
    """PostgreSQL holds neither NUL nor half a surrogate pair: each becomes the visible U+FFFD."""
    return UNSTORABLE.sub("\ufffd", text)
