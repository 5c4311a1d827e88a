"""Token arrays of samples that are made up, as a trainer writes them. Loads no Django, for the stand-in trainer."""

import hashlib
import io
import math
from collections.abc import Sequence
from typing import Any

from grpo_core.files.token_file import TokenRow, write_rows
from grpo_core.records import types as records
from grpo_core.records.commitments import commit

SALT = bytes(range(16))


def columns(pieces: Sequence[str], **more: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """Arrays of so many tokens, whose numbers differ from token to token; `more` replaces some."""
    count = len(pieces)
    made: dict[str, Sequence[Any]] = {
        "token_id": [100 + at for at in range(count)],
        "piece": list(pieces),
        "policy_logprob": [-0.5 - at % 7 / 10 for at in range(count)],
        "old_logprob": [-0.5 - at % 5 / 10 for at in range(count)],
        "sampler_logprob": [-0.5 - at % 5 / 10 - (0.25 if at % 50 == 49 else 0.0) for at in range(count)],
        "ratio": [math.exp((at % 5 - at % 7) / 10) for at in range(count)],
        "clipped": [at % 40 == 39 for at in range(count)],
        "in_loss": [True] * count,
        "advantage": [1.0 if at % 2 else -0.5 for at in range(count)],
    }
    return made | more


def content_of(rows: Sequence[TokenRow]) -> bytes:
    sink = io.BytesIO()
    write_rows(sink, rows)
    return sink.getvalue()


def with_tokens(groups: Sequence[records.Group], rows: Sequence[TokenRow]) -> tuple[list[records.Record], bytes]:
    """Records of a step whose samples have these rows, and the file: commitments, groups, then what names the file."""
    digests = {(row.group, row.sample): row.digest for row in rows}
    marked = [
        group.model_copy(
            update={
                "samples": tuple(
                    sample.model_copy(update={"tokens_sha256": digests.get((group.index, sample.index))})
                    for sample in group.samples
                )
            }
        )
        for group in groups
    ]
    salted, commitments = commit(marked)
    content = content_of(rows)
    return [commitments, *salted, named(content, groups[0].step, list(digests))], content


def named(content: bytes, step: int, keys: Sequence[tuple[int, int]]) -> records.TokenArrays:
    return records.TokenArrays(
        step=step,
        path=f"tokens/step-{step:06d}.parquet",
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        samples=tuple(keys),
    )
