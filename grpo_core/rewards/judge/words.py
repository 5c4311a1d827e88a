"""What a judge's server answered, told apart: an answer in words, or which trouble it was, and whether to ask again.

Everything here was written by a server or a model: it is read as data, and the key is taken out of it.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

from grpo_core.records.types import ErrorClass
from grpo_core.text import UNSTORABLE

_AGAIN = frozenset({408, 409, 425, 429})
_AGAIN_TROUBLE = frozenset({"timeout", "unresolved", "unreachable", "broken", "cut", "too_long", "protocol", "crashed"})
_DECLINED = ("content_filter", "content_policy_violation", "responsibleaipolicyviolation")
_TOO_LONG = ("context_length_exceeded", "maximum context length", "context length")
_SHOWN = 200
READ = 20_000
"""Characters from the end of what a judge says that are kept and looked at; a score stands there."""


@dataclass(frozen=True)
class Answer:
    """What the judge said."""

    text: str
    model: str = ""
    """As the server names what answered."""
    finish: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    """As the server counted them; None where it did not say."""


@dataclass(frozen=True)
class Failed:
    """Why there is no answer."""

    error: str
    error_class: ErrorClass = "infra"
    again: bool = False
    """Whether another try may go better."""
    wait: float | None = None
    """Seconds that the server asks to be left alone for."""


class Hidden:
    """Takes a key out of text that somebody else wrote."""

    def __init__(self, key: str | None) -> None:
        self._key = key

    def __call__(self, text: str) -> str:
        text = UNSTORABLE.sub("\ufffd", text)
        return text if self._key is None else text.replace(self._key, "[key]")


def told(reply: dict[str, Any], hide: Hidden) -> Answer | Failed:
    """`reply` is what child.py gave."""
    if "trouble" in reply:
        return Failed(_short(hide(reply["message"])), again=reply["trouble"] in _AGAIN_TROUBLE)
    status: int = reply["status"]
    if 300 <= status < 400:
        where = f" to {_short(hide(reply['location']))}" if reply["location"] else ""
        return Failed(f"the server redirects{where}, which is not followed; if that is meant, give it as base_url")
    if status != HTTPStatus.OK:
        return _status(reply, hide)
    try:
        body = json.loads(reply["body"])
    except (ValueError, RecursionError) as error:
        return _no_json(reply, error, hide)
    return _answer(body, hide)


def retry_after(text: str, *, now: datetime | None = None) -> float | None:
    """Seconds that a Retry-After header means: a number of them, or a date (RFC 9110, section 10.2.3)."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - (now or datetime.now(UTC))).total_seconds())


def _status(reply: dict[str, Any], hide: Hidden) -> Failed:
    status: int = reply["status"]
    message, code = _message(reply["body"])
    said = f": {_short(hide(message))}" if message else ""
    name = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "?"
    head = f"the server answered {status} {name}"
    if any(word in code.lower() for word in _DECLINED):
        return Failed(f"the server declined to judge (content filter){said}", "refused")
    if status in (400, 413, 422) and any(word in f"{code} {message}".lower() for word in _TOO_LONG):
        return Failed(f"too long for the judge{said}", "sample")
    if status in (401, 403):
        return Failed(f"{head}: the key is missing, wrong or not allowed here{said}")
    if status in (404, 405):
        return Failed(f"{head}: base_url or model is wrong{said}")
    if code == "insufficient_quota":
        return Failed(f"{head}: the account's quota is spent{said}")
    return Failed(f"{head}{said}", again=status in _AGAIN or status >= 500, wait=retry_after(reply["retry_after"]))


def _message(body: str) -> tuple[str, str]:
    """(message, code) of an error's body, as OpenAI, vLLM and FastAPI write it; empty where it has none."""
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        return ("" if body.lstrip().startswith("<") else body), ""
    if not isinstance(read, dict):
        return "", ""
    found = read.get("error", read)
    if not isinstance(found, dict):
        return str(found), ""
    message = found.get("message", found.get("detail", ""))
    return (message if isinstance(message, str) else json.dumps(message)), str(found.get("code") or "")


def _no_json(reply: dict[str, Any], error: Exception, hide: Hidden) -> Failed:
    body: str = reply["body"]
    start = body.lstrip()[:1]
    if reply["type"] in ("text/html", "application/xhtml+xml") or start == "<":
        return Failed("the server gave a web page, not JSON: base_url is likely wrong (it often ends in /v1)")
    if not start:
        return Failed("the answer is empty", again=True)
    if start == "{" and isinstance(error, json.JSONDecodeError) and not body.rstrip().endswith("}"):
        promised = reply["promised"]
        why = f"its Content-Length says {promised:,} bytes, and is too small" if promised is not None else "it was cut"
        return Failed(f"the answer's JSON breaks off in the middle: {why}", again=True)
    return Failed(f"the answer is no JSON: {_short(hide(body))}", again=True)


def _answer(body: Any, hide: Hidden) -> Answer | Failed:
    try:
        if "choices" not in body and "error" in body:
            return Failed(f"the server answered 200 OK with an error: {_short(hide(str(body['error'])))}", again=True)
        choice = body["choices"][0]
        message = choice["message"]
        refusal, content, finish = message.get("refusal"), message.get("content"), choice.get("finish_reason")
    except (LookupError, TypeError, AttributeError):
        return Failed("the answer is JSON, but no chat completion: it has no choices[0].message")
    if finish == "content_filter":
        return Failed("the judge declined to judge (content filter)", "refused")
    if isinstance(refusal, str) and refusal.strip():
        return Failed(f"the judge declined to judge: {_short(hide(refusal))}", "refused")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    usage = body.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    model = body.get("model")
    return Answer(
        text=hide(content)[-READ:] if isinstance(content, str) else "",
        model=_short(hide(model)) if isinstance(model, str) else "",
        finish=_short(hide(finish)) if isinstance(finish, str) else "",
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
    )


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 10**9 else None


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
