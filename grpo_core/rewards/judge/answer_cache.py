"""A judge's answers by the digest of the request, and what they cost.

In memory, and in a folder where one is given, so that a resumed run neither asks again nor gets a new budget. A
process writes into its own file and reads those of all; a last line that a crash tore is passed over.
"""

import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from grpo_core.rewards.judge.response import Answer

_KEPT = 20_000
"""Answers in memory; the least recently used one is dropped."""
_MODELS = 20
"""Names of models that are listed."""
_BYTES_PER_TOKEN = 3
"""For servers that do not count: few enough bytes that a budget rather ends early than late."""


@dataclass
class Usage:
    """Sums over this process's answers, with those of before the run was resumed."""

    calls: int = 0
    """Requests that were sent, with those that failed or were sent again."""
    answers: int = 0
    retried: int = 0
    failed: int = 0
    """Requests that no try brought an answer to."""
    cache_hits: int = 0
    refusals: int = 0
    unreadable: int = 0
    """Answers without a score."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated_answers: int = 0
    """Answers whose tokens the server did not count; they are counted as one for three bytes."""
    models: list[str] = field(default_factory=list)
    """As the server named what answered."""

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def add(self, answer: Answer, *, body: str) -> None:
        self.answers += 1
        sent, generated = answer.prompt_tokens, answer.completion_tokens
        if sent is None or generated is None:
            self.estimated_answers += 1
        self.prompt_tokens += _estimated(body) if sent is None else sent
        self.completion_tokens += _estimated(answer.text) if generated is None else generated
        if answer.model and answer.model not in self.models and len(self.models) < _MODELS:
            self.models.append(answer.model)


def request_digest(url: str, body: str, vote: int) -> str:
    """Name of one request; the key is no part of it."""
    return hashlib.sha256(json.dumps([url, body, vote]).encode()).hexdigest()


class AnswerCache:
    def __init__(self, folder: Path | None, *, name: str, rank: int) -> None:
        """`name` is that of exactly this judge. Raises OSError when the folder cannot be used."""
        self.usage = Usage()
        self._memory: OrderedDict[str, Answer] = OrderedDict()
        self._file: Path | None = None
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"judge-{name}-{rank}.jsonl"
        for path in sorted(folder.glob(f"judge-{name}-*.jsonl")):
            for line in _lines(path):
                answer = Answer(**line["answer"])
                self._remember(line["request"], answer)
                if path == self._file:
                    self.usage.add(answer, body=" " * line["asked_bytes"])
                    self.usage.calls += line["tries"]

    def find(self, digest: str) -> Answer | None:
        answer = self._memory.get(digest)
        if answer is not None:
            self._memory.move_to_end(digest)
            self.usage.cache_hits += 1
        return answer

    def add(self, digest: str, answer: Answer, *, body: str, tries: int) -> None:
        """Keep an answer; `usage.calls` is counted where calls are made."""
        self.usage.add(answer, body=body)
        self._remember(digest, answer)
        if self._file is not None:
            row = {"request": digest, "asked_bytes": len(body.encode()), "tries": tries, "answer": asdict(answer)}
            line = b"\n" + json.dumps(row).encode() + b"\n"  # begins with one too: the last line may be torn
            handle = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(handle, line)
            finally:
                os.close(handle)

    def _remember(self, digest: str, answer: Answer) -> None:
        self._memory[digest] = answer
        self._memory.move_to_end(digest)
        if len(self._memory) > _KEPT:
            self._memory.popitem(last=False)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Whole lines of a file that `AnswerCache.add` wrote."""
    with path.open("rb") as file:
        for line in file:
            try:
                row = json.loads(line) if line.strip() else None
            except ValueError:
                continue  # torn
            if isinstance(row, dict) and row.keys() == {"request", "asked_bytes", "tries", "answer"}:
                yield row


def _estimated(text: str) -> int:
    return -(-len(text.encode()) // _BYTES_PER_TOKEN)
