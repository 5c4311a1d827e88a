"""What the readers of other trainers' files share: a row, its bounds, and values made of any JSON or column."""

import hashlib
import json
import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cohort.evaluations.imports.bounds import BadImport, shown
from grpo_core.text import UNSTORABLE

MAX_IMPORT_BYTES = 256 * 1024 * 1024
"""All files of one import together."""
MAX_SAMPLES = 500_000
MAX_STEP_SAMPLES = 65_536
MAX_TEXT = 1_000_000
"""Characters of one prompt, reference answer or completion."""
MAX_COMPONENTS = 50
MAX_NAME = 100
LARGEST = 1e9
"""As of rewards that are trained with here."""


@dataclass(frozen=True)
class SourceFile:
    """A file on this machine's disk that somebody sent."""

    name: str
    path: Path

    def digest(self) -> str:
        with self.path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True)
class Row:
    """One completion as a file states it; what the file does not state is None or empty."""

    step: int
    prompt: str
    completion: str
    scores: dict[str, float | None]
    """By column; None where the file has no number."""
    answer: str = ""
    problem_id: str = ""
    advantage: float | None = None
    tokens: int | None = None
    finish_reason: str = ""
    passed: dict[str, bool] = field(default_factory=dict)
    """Of the scores that say right or wrong in words."""


@dataclass
class Reading:
    """What was noticed while files were read."""

    facts: dict[str, Any] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    """What the files hold and the run does not → how many rows have it."""
    states: set[str] = field(default_factory=set)
    """Columns of samples that some row stated."""


def text_of(value: Any, where: str) -> str:
    """A text as it is; of a chat's messages each role and content; any other value as JSON. Raises BadImport."""
    if isinstance(value, str):
        text = value
    elif value is None:
        raise BadImport(f"{where} is empty; every row needs one", code="no_text")
    elif is_chat(value):
        text = "\n\n".join(f"{message['role']}: {content_of(message.get('content'))}" for message in value)
    else:
        text = json.dumps(value, ensure_ascii=False, default=str)
    if len(text) > MAX_TEXT:
        raise BadImport(f"{where} has {len(text):,} characters; at most {MAX_TEXT:,} are taken", code="text_too_long")
    if match := UNSTORABLE.search(text):
        raise BadImport(
            f"{where} holds the character U+{ord(match[0]):04X}, which cannot be stored; take it out", code="unstorable"
        )
    return text


def is_chat(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in value)
    )


def completion_of(value: Any, where: str) -> str:
    """As `text_of`; of one message its content alone. Raises BadImport."""
    if is_chat(value) and len(value) == 1:
        value = content_of(value[0].get("content"))
    return text_of(value, where)


def content_of(content: Any) -> str:
    """Of a message: a text, or a list of parts whose texts are joined; any other part as JSON."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return "" if content is None else json.dumps(content, ensure_ascii=False, default=str)
    return "\n".join(
        str(part.get("text") or "") if isinstance(part, dict) and part.get("type") == "text" else json.dumps(part)
        for part in content
    )


def score_of(value: Any, where: str) -> float | None:
    """None for null and NaN, which trainers write where a reward function has no score. Raises BadImport."""
    if value is None:
        return None
    if not isinstance(value, int | float):  # true and false are 1 and 0
        raise BadImport(f"{where} is {shown(value)}, not a number", code="not_a_number")
    number = float(value) if abs(value) <= LARGEST or value != value else math.inf
    if math.isinf(number):
        raise BadImport(f"{where} is {shown(value)}; a number from -1e9 to 1e9 is expected", code="not_finite")
    return None if math.isnan(number) else number


def step_of(value: Any, where: str) -> int:
    """A whole number, also as text (TRL wrote it so). Raises BadImport."""
    try:
        step = int(value)
    except (TypeError, ValueError, OverflowError):
        step = -1
    if isinstance(value, bool) or not 0 <= step < 2**31 or (isinstance(value, float) and value != step):
        raise BadImport(f"{where} is {shown(value)}; a step is a whole number from 0", code="bad_step")
    return step


def name_of(name: str, where: str) -> str:
    """Of a score's column. Raises BadImport."""
    if not name.strip() or len(name) > MAX_NAME or UNSTORABLE.search(name):
        raise BadImport(
            f"{where} has a column named {shown(name)}; a name has 1 to {MAX_NAME} characters", code="bad_name"
        )
    return name
