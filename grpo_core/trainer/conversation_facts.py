"""What a manifest says of conversations to learn from: hashes, layouts, lengths, and one of them token by token."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from grpo_core.data.answers import EncodedConversation, EncodedConversations
from grpo_core.data.fingerprint import conversations_digest, file_sha256
from grpo_core.data.prompts import length_stats
from grpo_core.data.supervised import detect_conversations
from grpo_core.model.source import dataset_digest
from grpo_core.trainer.manifest import DataSource

_EXAMPLE_TOKENS = 2_000
"""Most tokens of the example that a manifest keeps."""


def conversation_facts(sources: Sequence[DataSource], encoded: EncodedConversations) -> dict[str, Any]:
    """Of one set, from one file or several; `sha256` of several is that of their names and hashes. Conversations are
    counted as `problems`, which is what pages count of any dataset."""
    (first, *_) = sources
    hub = getattr(first.part, "hub", None)
    files = [(source.name(path), path) for source in sources for path in source.files]
    hashes = {name: file_sha256(path) for name, path in files}
    rows = [row for own in encoded.conversations for row in own.rows]
    return {
        "content": "conversations",
        "path": first.path,
        "hub": hub.model_dump() if hub is not None else None,
        "files": hashes,
        "sha256": dataset_digest(hashes),
        "format": ", ".join(dict.fromkeys(detect_conversations(path) for _, path in files)),
        "problems": len(encoded.conversations),
        "problems_digest": conversations_digest(own.conversation for own in encoded.conversations),
        "rows": len(rows),
        "dropped": len(encoded.dropped),
        "rewritten": encoded.rewritten,
        "unjoined": encoded.unjoined,
        "prompt_tokens": length_stats([len(row.prompt) for row in rows]),
        "answer_tokens": length_stats([row.answer_tokens for row in rows]),
        "lengths": _lengths([row.length for row in rows]),
        "tokens": sum(row.length for row in rows),
        "learned_tokens": encoded.answer_tokens,
        "example": _example(encoded.conversations[0]),
        "chat": dict(encoded.chat),
    }


def _lengths(lengths: Sequence[int]) -> dict[str, Any]:
    counts, edges = np.histogram(lengths, bins=20)
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def _example(encoded: EncodedConversation) -> dict[str, Any]:
    """The first conversation's first row as the model sees it: its tokens, and which of them are learned."""
    row = encoded.rows[0]
    tokens = [*row.prompt, *row.completion]
    learned = [False] * len(row.prompt) + list(row.learned or [True] * len(row.completion))
    return {
        "id": encoded.conversation.id,
        "tokens": tokens[:_EXAMPLE_TOKENS],
        "learned": [int(each) for each in learned[:_EXAMPLE_TOKENS]],
        "left_out": max(0, len(tokens) - _EXAMPLE_TOKENS),
    }
