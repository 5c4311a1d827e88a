"""A commitment to every completion of a run, kept or not: a salted hash that reveals nothing of it, and that cannot be
made to fit another one afterwards.

The salt is drawn for each sample and goes with its text: anyone who has both can check the hash, and once both are
deleted no one can recover what was hashed, not even by guessing (RFC 6962 leaves over salted bytes). A completion that
is not kept leaves its hash alone. Loads no torch.
"""

import base64
import binascii
import secrets
from collections.abc import Sequence
from typing import Any

from grpo_core.records.leaves import HASH_BYTES, SALT_BYTES, leaf
from grpo_core.records.types import Commitments, Group, Sample
from grpo_core.text import UNSTORABLE

# The salted hash that stands for a completion: one definition for the trainer that makes it and for those who check it.
# Needs nothing but RFC 8785, so that a card can be checked anywhere.


def new_salt() -> bytes:
    """From the system's randomness, never from the run's seed: that is public, and a short completion could be
    guessed."""
    return secrets.token_bytes(SALT_BYTES)


def sample_content(group: Group, sample: Sample) -> dict[str, Any]:
    """What a sample's leaf binds. Its texts are those that can be kept: a platform stores U+FFFD for NUL and for half a
    surrogate pair, which byte-level tokenizers do sample, and those who check the leaf have only what was stored."""
    content = {
        "step": group.step,
        "group": group.index,
        "sample": sample.index,
        "problem_id": _kept(group.problem_id),
        "prompt": _kept(group.prompt),
        "completion": _kept(sample.completion),
        "tokens": sample.tokens,
        "finish_reason": sample.finish_reason,
        "reward": sample.reward,
        "advantage": sample.advantage,
    }
    return content if sample.tokens_sha256 is None else content | {"tokens_sha256": sample.tokens_sha256}


def _kept(text: str) -> str:
    return UNSTORABLE.sub("\ufffd", text)


def commit(groups: Sequence[Group]) -> tuple[list[Group], Commitments]:
    """The groups of one step, in order of their index, with a salt in each sample, and the step's commitments.

    Leaf i·G + j is of sample j of group i: groups are numbered from 0 without gaps.
    """
    salted, leaves = [], []
    for group in groups:
        samples = []
        for sample in group.samples:
            salt = new_salt()
            samples.append(sample.model_copy(update={"salt": salt.hex()}))
            leaves.append(leaf(salt, sample_content(group, sample)))
        salted.append(group.model_copy(update={"samples": tuple(samples)}))
    packed = base64.b64encode(b"".join(leaves)).decode()
    return salted, Commitments(step=groups[0].step, count=len(leaves), leaves=packed)


def unpack(text: str) -> list[bytes]:
    """The leaves of a base64 text, 32 bytes each. Raises ValueError for any other text."""
    try:
        packed = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None
    if len(packed) % HASH_BYTES or base64.b64encode(packed).decode() != text:
        raise ValueError(f"{len(packed)} bytes are not hashes of {HASH_BYTES} bytes each")
    return [packed[at : at + HASH_BYTES] for at in range(0, len(packed), HASH_BYTES)]
