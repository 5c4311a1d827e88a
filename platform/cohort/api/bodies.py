"""Bodies of calls: strict JSON, of which nothing is guessed. What PostgreSQL could not hold, and what two readers of
JSON could read in two ways, is refused.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

from django.http import HttpRequest
from pydantic import BaseModel

from cohort.api.problems import Problem
from grpo_core.config.messages import validated
from grpo_core.data.lines import parse_json
from grpo_core.errors import ConfigError
from grpo_core.text import UNSTORABLE

MAX_DEPTH = 32
"""Of objects and lists in each other."""
M = TypeVar("M", bound=BaseModel)


def read_body(request: HttpRequest, model: type[M]) -> M:
    """The body as a model. Raises Problem: 415 for another media type, 400 for what is not JSON, 422 for a fault in
    it, with the field of each."""
    if request.content_type != "application/json":
        raise Problem(415, "not_json", "Send the body as JSON, with Content-Type: application/json.")
    try:
        return validated(model, strict_json(request.body), "this request is not valid")
    except ConfigError as error:
        raise Problem.of(422, "invalid", error) from None


def strict_json(body: bytes) -> Any:
    """Raises Problem 400: for anything but one JSON value in UTF-8, for a name given twice in an object, for NaN,
    Infinity and numbers beyond a double, for nesting beyond MAX_DEPTH, for NUL and halves of surrogate pairs."""
    try:
        content = parse_json(body.decode("utf-8"))
    except RecursionError:
        raise _deep() from None
    except ValueError as error:  # also of UTF-8, and of a whole number with thousands of digits
        raise Problem(400, "unreadable_body", f"The body cannot be read: {error}.") from None
    level: list[Any] = [content]
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return content
        for text in (text for value in level for text in _texts(value)):
            if UNSTORABLE.search(text):
                raise Problem(400, "unreadable_body", f"The text {text[:60]!a} holds NUL or half a surrogate pair.")
        level = [inner for value in level for inner in _inner(value)]
    raise _deep()


def _deep() -> Problem:
    return Problem(400, "unreadable_body", f"The body is nested more than {MAX_DEPTH} deep.")


def _inner(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _texts(value: Any) -> Iterable[str]:
    return (value,) if isinstance(value, str) else value if isinstance(value, dict) else ()
