"""How a witness's cosignature is requested (c2sp.org/tlog-witness)."""

import base64
import re
import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime

from cohort.evidence.cosignature import WitnessKey
from grpo_core.runtime.http import HttpClient, HttpError, Reply

_SIZE = re.compile(r"(0|[1-9][0-9]{0,18})\n")
SECONDS = 30.0
"""For a whole exchange with a witness: both requests, from the DNS look-up to the last byte."""
_MAX_REPLY_BYTES = 64 * 1024


class WitnessFault(Exception):
    """The witness did not cosign. The message holds its reply."""


class OtherSize(WitnessFault):
    """The witness has seen a checkpoint of another size than the request names."""

    def __init__(self, size: int) -> None:
        self.size = size
        super().__init__(f"the witness has last cosigned the checkpoint of {size:,} entries")


def cosigned(
    url: str,
    key: WitnessKey,
    note: str,
    *,
    old: int,
    proof: Callable[[int], list[bytes]],
    seconds: float | None = None,
) -> tuple[str, datetime]:
    """The witness's line for the checkpoint `note`, and when it signed.

    `old` is the size of the checkpoint that it is thought to have cosigned last; when it answers with another (409),
    the request is repeated from there. `proof` gives the consistency proof from a size. The witness has `seconds`
    (SECONDS) for all of it together, however it paces its answers. Raises WitnessFault.
    """
    seconds = SECONDS if seconds is None else seconds
    first = proof(old)
    begun = time.monotonic()
    try:
        return _request(url, key, note, old, first, seconds)
    except OtherSize as other:
        spent = time.monotonic() - begun
        if other.size == old or other.size > int(note.split("\n")[1]):
            raise WitnessFault(
                f"{other}, which does not lead to this checkpoint: it holds another history of this log"
            ) from None
        return _request(url, key, note, other.size, proof(other.size), seconds, spent)


def _request(
    url: str, key: WitnessKey, note: str, old: int, proof: list[bytes], seconds: float, spent: float = 0.0
) -> tuple[str, datetime]:
    lines = [f"old {old}", *(base64.b64encode(digest).decode() for digest in proof), "", note]
    reply = _reply(url, "\n".join(lines).encode(), seconds, spent)
    body = reply.body.decode("utf-8", errors="replace")
    if reply.status != 200:
        raise _refusal(reply.status, reply.headers.get("Content-Type", "").partition(";")[0].strip().lower(), body)
    for line in body.splitlines():
        at = key.verified(note, line)
        if at is not None:
            return line, at
    raise WitnessFault(f"the witness answered without a cosignature of {key.name} that fits the checkpoint")


def _reply(url: str, body: bytes, seconds: float, spent: float) -> Reply:
    """Raises WitnessFault when `seconds`, of which `spent` are over, are not enough."""
    path, headers = f"{url.rstrip('/')}/add-checkpoint", {"Content-Type": "text/plain; charset=utf-8"}
    left = max(seconds - spent, 0.001)
    with closing(HttpClient(proxies=True)) as client:
        try:
            return client.call("POST", path, headers=headers, body=body, seconds=left, max_bytes=_MAX_REPLY_BYTES)
        except HttpError as error:
            late = f"took longer than {seconds:g} s for its whole answer, and the exchange was ended"
            raise WitnessFault(f"{url} {late if error.cause == 'timeout' else f'cannot be reached: {error}'}") from None


def _refusal(status: int, kind: str, body: str) -> WitnessFault:
    if status == 409 and kind == "text/x.tlog.size" and (size := _SIZE.fullmatch(body)):
        return OtherSize(int(size[1]))
    meaning = {
        400: "it found the request malformed",
        403: "it knows this log, and none of the keys that signed",
        404: "it does not know this log: have its operator add the log's name and key",
        409: "it has another history of this log",
        422: "the proof that this checkpoint follows from its last one does not hold",
    }
    text = " ".join(body.split())[:200]
    why = meaning.get(status, "")
    return WitnessFault(": ".join(part for part in (f"the witness answered {status}", why, text) if part))
