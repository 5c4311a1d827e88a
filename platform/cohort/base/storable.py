"""Text from people and workers, made storable. Says what is replaced, so that nobody takes it for the exact bytes."""

from typing import Any

from grpo_core.text import UNSTORABLE


def storable(text: str) -> str:
    """PostgreSQL holds neither NUL nor half a surrogate pair: each becomes the visible U+FFFD."""
    return UNSTORABLE.sub("\ufffd", text)


def storable_json(content: Any) -> Any:
    """The same for every text in JSON content, keys too."""
    match content:
        case str():
            return storable(content)
        case list():
            return [storable_json(item) for item in content]
        case dict():
            return {storable(key): storable_json(value) for key, value in content.items()}
        case _:
            return content
