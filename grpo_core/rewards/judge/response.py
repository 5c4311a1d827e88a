"""Reads a judge's reply: the answer's text, or the error and whether to try again; and the score out of the text.

Everything here was written by a server or a model: it is read as data, the key is taken out of it, and patterns run
against a clock, as the graded completion may have talked the judge into anything.
"""

import json
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

from grpo_core.records.types import ErrorClass
from grpo_core.runtime.http import HttpError, Reply
from grpo_core.text import UNSTORABLE

_RETRY = frozenset({408, 409, 425, 429})
_FINAL = frozenset({"private", "tls", "compressed"})
_DECLINED = ("content_filter", "content_policy_violation", "responsibleaipolicyviolation")
_TOO_LONG = ("context_length_exceeded", "maximum context length", "context length")
_SHOWN = 200
_KEPT = 20_000
"""Characters from the end of a judge's answer that are kept and looked at; the score is there."""
_PATTERN_SECONDS = 2.0
_OBJECTS = 300
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d{1,4})?", re.IGNORECASE | re.ASCII)
_NO_NUMBERS = frozenset({"nan", "inf", "infinity"})


@dataclass(frozen=True)
class Answer:
    """The judge's answer."""

    text: str
    model: str = ""
    """The model, as the server names it."""
    finish: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    """As the server counted them; None where it did not report them."""


@dataclass(frozen=True)
class Failed:
    """Why there is no answer."""

    error: str
    error_class: ErrorClass = "infra"
    retry: bool = False
    """Whether another try may go better."""
    wait: float | None = None
    """Seconds that the server asks to wait."""


def read_reply(reply: Reply, key: str | None) -> Answer | Failed:
    """A server's text, without the key that was sent to it."""
    status, text = reply.status, reply.body.decode("utf-8", errors="replace")
    if 300 <= status < 400:
        location = reply.headers.get("Location", "")
        target = f" to {_short(location, key)}" if location else ""
        return Failed(f"the server redirects{target}, which is not followed; if that is meant, give it as base_url")
    if status != HTTPStatus.OK:
        return _bad_status(status, text, reply.headers.get("Retry-After", ""), key)
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        return _no_json(reply, text, error, key)
    return _answer(body, key)


def read_error(error: HttpError, key: str | None) -> Failed:
    """Of a call without a reply."""
    return Failed(_short(str(error), key), retry=error.cause not in _FINAL)


def retry_after(text: str) -> float | None:
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
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


def _bad_status(status: int, body: str, wait: str, key: str | None) -> Failed:
    message, code = _message(body)
    suffix = f": {_short(message, key)}" if message else ""
    name = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "?"
    head = f"the server answered {status} {name}"
    if any(word in code.lower() for word in _DECLINED):
        return Failed(f"the server declined to judge (content filter){suffix}", "refused")
    if status in (400, 413, 422) and any(word in f"{code} {message}".lower() for word in _TOO_LONG):
        return Failed(f"too long for the judge{suffix}", "sample")
    if status in (401, 403):
        return Failed(f"{head}: the key is missing, wrong or not allowed here{suffix}")
    if status in (404, 405):
        return Failed(f"{head}: base_url or model is wrong{suffix}")
    if code == "insufficient_quota":
        return Failed(f"{head}: the account's quota is spent{suffix}")
    return Failed(f"{head}{suffix}", retry=status in _RETRY or status >= 500, wait=retry_after(wait))


def _message(body: str) -> tuple[str, str]:
    """(message, code) of an error's body, as OpenAI, vLLM and FastAPI write it; empty where it has none."""
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        return ("" if body.lstrip().startswith("<") else body), ""
    if not isinstance(read, dict):
        return "", ""
    error = read.get("error", read)
    if not isinstance(error, dict):
        return str(error), ""
    message = error.get("message", error.get("detail", ""))
    return (message if isinstance(message, str) else json.dumps(message)), str(error.get("code") or "")


def _no_json(reply: Reply, body: str, error: Exception, key: str | None) -> Failed:
    kind, start = reply.headers.get("Content-Type", "").partition(";")[0].strip().lower(), body.lstrip()[:1]
    if kind in ("text/html", "application/xhtml+xml") or start == "<":
        return Failed("the server gave a web page, not JSON: base_url is likely wrong (it often ends in /v1)")
    if not start:
        return Failed("the answer is empty", retry=True)
    if start == "{" and isinstance(error, json.JSONDecodeError) and not body.rstrip().endswith("}"):
        length = reply.headers.get("Content-Length")
        why = f"its Content-Length says {length} bytes, and is too small" if length is not None else "it was cut"
        return Failed(f"the answer's JSON breaks off in the middle: {why}", retry=True)
    return Failed(f"the answer is no JSON: {_short(body, key)}", retry=True)


def _answer(body: Any, key: str | None) -> Answer | Failed:
    try:
        if "choices" not in body and "error" in body:
            return Failed(f"the server answered 200 OK with an error: {_short(str(body['error']), key)}", retry=True)
        choice = body["choices"][0]
        message = choice["message"]
        refusal, content, finish = message.get("refusal"), message.get("content"), choice.get("finish_reason")
    except (LookupError, TypeError, AttributeError):
        return Failed("the answer is JSON, but no chat completion: it has no choices[0].message")
    if finish == "content_filter":
        return Failed("the judge declined to judge (content filter)", "refused")
    if isinstance(refusal, str) and refusal.strip():
        return Failed(f"the judge declined to judge: {_short(refusal, key)}", "refused")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    usage = body.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    model = body.get("model")
    return Answer(
        text=_redact(content, key)[-_KEPT:] if isinstance(content, str) else "",
        model=_short(model, key) if isinstance(model, str) else "",
        finish=_short(finish, key) if isinstance(finish, str) else "",
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
    )


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 10**9 else None


def _short(text: str, key: str | None) -> str:
    text = " ".join(_redact(text, key).split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _redact(text: str, key: str | None) -> str:
    text = UNSTORABLE.sub("\ufffd", text)
    return text if key is None else text.replace(key, "[key]")


class NoScore(Exception):
    """The text holds no score; the message says why."""

    def __init__(self, message: str, error_class: ErrorClass = "parse") -> None:
        super().__init__(message)
        self.error_class: ErrorClass = error_class


def by_pattern(text: str, pattern: str) -> str:
    """What the last match of `pattern` holds in its first group, or as a whole where it has none. Raises NoScore."""
    import regex

    try:
        matches = list(regex.finditer(pattern, text, timeout=_PATTERN_SECONDS))
    except TimeoutError:
        raise NoScore(
            f"score_pattern takes more than {_PATTERN_SECONDS:g} s on the judge's text; simplify it"
        ) from None
    if not matches:
        raise NoScore("no match of score_pattern in the judge's text")
    last = matches[-1]
    return (last[1] or "") if last.re.groups else last[0]


def by_field(text: str, field: str) -> Any:
    """The field of the last JSON object in the text that has it. Raises NoScore."""
    decoder, index, values = json.JSONDecoder(), 0, []
    for _ in range(_OBJECTS):
        index = text.find("{", index)
        if index < 0:
            break
        try:
            value, index = decoder.raw_decode(text, index)
        except (ValueError, RecursionError):
            index += 1
        else:
            values += [value[field]] if field in value else []
    if not values:
        raise NoScore(f"no JSON object with {field!r} in the judge's text")
    return values[-1]


def as_number(value: Any) -> float:
    """Raises NoScore for what is no finite number."""
    if isinstance(value, str):
        text = value.strip().rstrip(".,")
        if text.lower().lstrip("+-") in _NO_NUMBERS:
            raise NoScore(f"the score is {text[:20]}, which is not a finite number", "value")
        if not _NUMBER.fullmatch(text):
            raise NoScore(f"the score is not a number: {text[:60]!r}")
        value = float(text)
    if type(value) not in (int, float):
        raise NoScore(f"the score is not a number: {str(value)[:60]}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise NoScore("the score is not a finite number", "value")
    return number


def share(number: float, *, minimum: float, maximum: float) -> float:
    """The score as a share of the way from `minimum` to `maximum`. Raises NoScore outside them."""
    if not minimum <= number <= maximum:
        raise NoScore(f"the score {number:g} is not between {minimum:g} and {maximum:g}")
    return (number - minimum) / (maximum - minimum)
