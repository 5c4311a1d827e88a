"""Text from people and workers, made storable, and the error of what the platform refuses."""

from typing import Any

from grpo_core.text import UNSTORABLE


class Refused(Exception):
    """The message is for people and may change; `code`, in snake_case, is stable. It is the class's own, or names
    which of several reasons it was."""

    code = "refused"

    def __init_subclass__(cls, *, code: str) -> None:
        cls.code = code

    def __init__(self, message: str = "", *, code: str = "") -> None:
        super().__init__(message)
        if code:
            self.code = code


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
