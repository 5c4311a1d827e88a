"""What data was used, as digests that anyone can compute again."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from grpo_core.data.problem import Problem
from grpo_core.data.supervised import Conversation
from grpo_core.errors import DataError


def file_sha256(path: Path) -> str:
    """SHA-256 of the file's bytes, as hex."""
    try:
        with path.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def problems_digest(problems: Iterable[Problem]) -> str:
    """SHA-256 of what is trained or evaluated on, in order: per problem one line `["id","prompt","answer"]` of JSON
    in UTF-8 without spaces, ended by a newline. The prompt of a conversation is the list of its `["role","content"]`;
    several reference answers are a list."""
    digest = hashlib.sha256()
    for problem in problems:
        prompt: Any = [[message.role, message.content] for message in problem.messages] or problem.prompt
        answer: Any = [problem.answer, *problem.other_answers] if problem.other_answers else problem.answer
        line = json.dumps([problem.id, prompt, answer], ensure_ascii=False, separators=(",", ":"))
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def conversations_digest(conversations: Iterable[Conversation]) -> str:
    """SHA-256 of what is learned from, in order: per conversation one line, the list of its `["role","content"]`, of
    JSON in UTF-8 without spaces, ended by a newline."""
    digest = hashlib.sha256()
    for conversation in conversations:
        turns = [[message.role, message.content] for message in conversation.messages]
        digest.update(json.dumps(turns, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()
