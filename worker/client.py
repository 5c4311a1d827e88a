"""The platform's worker API over HTTP, one method a call (docs/worker-protocol.md).

Connection errors, 5xx, 429 and answers that are not the platform's own (a proxy's page, a redirect) are tried again
with growing pauses for as long as the caller has patience; a Refusal is the platform's word and is raised at once.
"""

import hashlib
import ipaddress
import random
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from grpo_core.wire import (
    Beat,
    BeatReply,
    ClaimReply,
    ClaimRequest,
    Finish,
    IngestReply,
    InputFile,
    LostAttempt,
    LostAttempts,
    NodeInfo,
    OldCheckpoint,
    Progress,
    Refusal,
    UploadReply,
)

Reply = TypeVar("Reply", bound=BaseModel)

_TIMEOUT = httpx.Timeout(20.0, connect=5.0)
_UPLOAD_TIMEOUT = httpx.Timeout(20.0, read=300.0)  # the call with a file's last byte waits until all was checked
_LONGEST_PAUSE = 10.0
_GLANCE = 0.25
"""Seconds between two looks at what else there is to do, while a try that failed is waited out."""


def _nothing() -> None:
    return


class PlatformError(Exception):
    """A call that did not succeed."""


class Unreachable(PlatformError):
    """No answer, or none that was the platform's own. Trying later may help."""


class Refused(PlatformError):
    """The platform said no; trying again would not help."""

    def __init__(self, status: int, refusal: Refusal) -> None:
        self.status, self.code = status, refusal.code
        super().__init__(refusal.message)

    @property
    def disowned(self) -> bool:
        """The attempt is no longer this worker's: it must stop at once and write nothing more."""
        return self.code in ("stale_fence", "unknown_token")


class BadFile(PlatformError):
    """An input file that did not arrive as it was announced."""


class Platform:
    """Calls made with the node's token."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._http = _client(url)
        self._token = token

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def claim(
        self, run_id: int, node: NodeInfo, *, patience: float = 60.0, meanwhile: Callable[[], None] = _nothing
    ) -> ClaimReply:
        """`meanwhile` is called between tries; what it raises ends them."""
        body = ClaimRequest(run_id=run_id, claim_id=secrets.token_hex(16), node=node)  # one id for all tries
        return _understood(ClaimReply, _call(self._http, "claim", self._token, patience, meanwhile, json=_json(body)))

    def present(self, node: NodeInfo) -> None:
        _call(self._http, "node", self._token, json=_json(node))

    def lost(self, attempts: list[LostAttempt], *, patience: float = 0.0) -> None:
        """Tell of attempts of this node whose processes are dead."""
        _call(self._http, "node/lost", self._token, patience, json=_json(LostAttempts(attempts=attempts)))

    def attempt(self, claimed: ClaimReply) -> "AttemptLink":
        return AttemptLink(self._http, claimed)

    def attempt_aside(self, claimed: ClaimReply) -> "AttemptLink":
        """The same on connections of its own, for another thread; the caller closes it."""
        return AttemptLink(_client(self._url), claimed)


class AttemptLink:
    """Calls of one attempt, with its own token."""

    def __init__(self, http: httpx.Client, claimed: ClaimReply) -> None:
        self._http = http
        self._token = claimed.token
        self._fence = claimed.fence
        self._at = f"attempts/{claimed.attempt_id}"

    def close(self) -> None:
        self._http.close()

    def beat(
        self,
        *,
        shipped_seq: int,
        spooled_bytes: int,
        free_bytes: int | None = None,
        progress: Progress | None = None,
        removed: Sequence[OldCheckpoint] = (),
    ) -> BeatReply:
        body = Beat(
            fence=self._fence,
            shipped_seq=shipped_seq,
            spooled_bytes=spooled_bytes,
            free_bytes=free_bytes,
            progress=progress,
            removed=list(removed),
        )
        return _understood(BeatReply, _call(self._http, f"{self._at}/heartbeat", self._token, json=_json(body)))

    def records(self, compressed: bytes) -> IngestReply:
        headers = {"X-Cohort-Fence": str(self._fence), "Content-Type": "application/zstd"}
        answer = _call(self._http, f"{self._at}/records", self._token, content=compressed, headers=headers)
        return _understood(IngestReply, answer)

    def upload(self, sha256: str, *, offset: int, part: bytes) -> UploadReply:
        """Send a part of a checkpoint's file; an empty one asks how far it is. Tried once."""
        # fmt: off
        headers = {
            "X-Cohort-Fence": str(self._fence), "X-Cohort-Offset": str(offset),
            "Content-Type": "application/octet-stream",
        }
        # fmt: on
        place = f"{self._at}/uploads/{sha256}"
        answer = _call(self._http, place, self._token, content=part, headers=headers, timeout=_UPLOAD_TIMEOUT)
        return _understood(UploadReply, answer)

    def finish(self, finish: Finish, *, patience: float, meanwhile: Callable[[], None]) -> None:
        """`meanwhile` is called between tries, and while the next is waited for."""
        _call(self._http, f"{self._at}/finish", self._token, patience, meanwhile, json=_json(finish))

    def fetch(self, file: InputFile, target: Path, *, meanwhile: Callable[[], None], patience: float) -> None:
        """Store the file at `target`, which then holds exactly the announced bytes. Raises BadFile when it cannot.

        `meanwhile` is called at every chunk and between tries; what it raises ends the fetch.
        """
        if target.is_file() and _sha256(target) == file.sha256:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(target.name + ".part")
        _retry(lambda: self._fetch_once(file, aside, meanwhile), patience, meanwhile)
        aside.replace(target)

    def _fetch_once(self, file: InputFile, aside: Path, meanwhile: Callable[[], None]) -> None:
        digest, size = hashlib.sha256(), 0
        request = self._http.build_request(
            "GET", f"{self._at}/files/{file.sha256}", headers={"Authorization": f"Bearer {self._token}"}
        )
        try:
            answer = self._http.send(request, stream=True)
            try:
                if not answer.is_success:
                    answer.read()
                    _raise_for(answer)
                with aside.open("wb") as handle:
                    for chunk in answer.iter_bytes():
                        handle.write(chunk)
                        digest.update(chunk)
                        size += len(chunk)
                        meanwhile()
            finally:
                answer.close()
        except httpx.TransportError as error:
            raise Unreachable(f"fetching {file.path}: {error}") from None
        if digest.hexdigest() != file.sha256:
            raise BadFile(
                f"{file.path} arrived as {size} bytes with SHA-256 {digest.hexdigest()}; "
                f"announced were {file.size} bytes with {file.sha256}"
            )


def _call(
    http: httpx.Client,
    path: str,
    token: str,
    patience: float = 0.0,
    meanwhile: Callable[[], None] = _nothing,
    **request: Any,
) -> httpx.Response:
    headers = {**request.pop("headers", {}), "Authorization": f"Bearer {token}"}

    def once() -> httpx.Response:
        try:
            answer = http.post(path, headers=headers, **request)
        except httpx.TransportError as error:
            raise Unreachable(f"{path}: {type(error).__name__}: {error}") from None
        if not answer.is_success:
            _raise_for(answer)
        return answer

    return _retry(once, patience, meanwhile)


Result = TypeVar("Result")


def _retry(once: Callable[[], Result], patience: float, meanwhile: Callable[[], None]) -> Result:
    """Call until it succeeds; give up with its Unreachable when the next pause would outlast the patience."""
    began, pause = time.monotonic(), 0.5
    while True:
        try:
            return once()
        except Unreachable:
            wait = pause * random.uniform(0.5, 1.0)
            if time.monotonic() - began + wait > patience:
                raise
        over = time.monotonic() + wait
        meanwhile()
        while (left := over - time.monotonic()) > 0:
            time.sleep(min(left, _GLANCE))
            meanwhile()
        pause = min(2 * pause, _LONGEST_PAUSE)


def _raise_for(answer: httpx.Response) -> None:
    if answer.status_code >= 500 or answer.status_code == 429:
        raise Unreachable(f"{answer.url.path}: the platform answered {answer.status_code}")
    try:
        refusal = Refusal.model_validate_json(answer.content)
    except ValidationError:
        # Not the platform's own words: a proxy, a redirect to https, another server at this address.
        raise Unreachable(
            f"{answer.url} answered {answer.status_code}, which is not the platform's own answer; "
            "is COHORT_URL the platform's address?"
        ) from None
    raise Refused(answer.status_code, refusal)


def _client(url: str) -> httpx.Client:
    # Another machine's proxy cannot reach this machine's own addresses.
    direct = dict.fromkeys(("http://", "https://")) if _on_this_machine(url) else None
    return httpx.Client(base_url=f"{url.rstrip('/')}/api/worker/v1/", timeout=_TIMEOUT, mounts=direct)


def _on_this_machine(url: str) -> bool:
    host = httpx.URL(url).host
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _understood(kind: type[Reply], answer: httpx.Response) -> Reply:
    try:
        return kind.model_validate_json(answer.content)
    except ValidationError as error:
        raise Unreachable(f"{answer.url} gave an answer that is no {kind.__name__}: {error}") from None


def _json(body: BaseModel) -> Any:
    return body.model_dump(mode="json")


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
