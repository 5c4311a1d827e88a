"""The platform's worker API over HTTP, one method a call (docs/worker-protocol.md).

Connection errors, 5xx, 429 and answers that are not the platform's own (a proxy's page, a redirect) are tried again
with growing pauses for as long as the caller has patience; a Refusal is the platform's answer and is raised at once.
No try lasts longer than its time: 25 s, and for a large body what a slow line needs.
"""

import hashlib
import logging
import random
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import zstandard
from pydantic import BaseModel, ValidationError

from grpo_core.protocol.messages import (
    MAX_PAGE_BYTES,
    Beat,
    BeatReply,
    ClaimReply,
    ClaimRequest,
    Finish,
    GroupPage,
    GroupRescored,
    IngestReply,
    InputFile,
    JobBeat,
    JobBeatReply,
    JobClaim,
    JobFinish,
    JobGiven,
    LogReply,
    LostAttempt,
    LostAttempts,
    NodeInfo,
    NodeReply,
    PageRequest,
    Refusal,
    ScoresReply,
    ScoresSent,
    Unavailable,
    UploadReply,
)
from grpo_core.runtime.http import CHECK_SECONDS, HttpClient, HttpError, Reply

Model = TypeVar("Model", bound=BaseModel)
Meanwhile = Callable[[], None]
"""Called while something is waited for; what it raises ends the wait."""

_SECONDS = 25.0
"""For one try of a call, its body apart; for the next byte of a file. Well below a lease, because the worker sends
nothing while it waits for the answer to a beat."""
_SLOWEST_LINE = 32 * 1024
"""Bytes a second; on a line that is slower the largest bodies do not arrive in their time."""
_CLAIM_SECONDS = 60.0
"""In which a claim is tried again."""
_READ_AGAIN_SECONDS = 300.0
"""The call with a file's last byte waits until the platform has read all of it again."""
_IDLE_SECONDS = 20.0
"""In which a connection must take or give at least a byte, or is given up before the whole call is."""
_JSON = {"Content-Type": "application/json"}
_MAX_REPLY_BYTES = 16 * 1024 * 1024
"""Of a reply that is no file: several times what a claim of a run with many checkpoints has."""
_LONGEST_PAUSE = 10.0
_ANEW_AFTER = (2.0, 8.0, 30.0)
"""Seconds before each further try to fetch a file that arrived wrong, such as a proxy's page with status 200."""

log = logging.getLogger(__name__)


def _nothing() -> None:
    return


class PlatformError(Exception):
    """A call that did not succeed."""


class Unreachable(PlatformError):
    """No answer, or none that was the platform's own. Trying later may help. `begun`: bytes of a file had arrived."""

    def __init__(self, message: str, *, begun: bool = False) -> None:
        super().__init__(message)
        self.begun = begun


class Refused(PlatformError):
    """The platform refused; trying again would not help."""

    def __init__(self, status: int, refusal: Refusal) -> None:
        self.status, self.code = status, refusal.code
        super().__init__(refusal.message)

    @property
    def disowned(self) -> bool:
        """The attempt is no longer this worker's: it must stop at once and write nothing more."""
        return self.code in ("stale_fence", "unknown_token")


class BadFile(PlatformError):
    """An input file that did not arrive as it was announced."""


def node_of(token: str) -> str:
    """Names the node among those that share a runs folder, and reveals nothing of its token."""
    return hashlib.sha256(f"cohort node {token}".encode()).hexdigest()[:16]


class Platform:
    """Calls made with the node's token."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._http = _client(url)
        self._token = token
        self.node = node_of(token)
        """Names this node among those that share a runs folder."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def claim(self, run_id: int, node: NodeInfo, *, meanwhile: Meanwhile = _nothing) -> ClaimReply:
        """`meanwhile` is called between tries; what it raises ends them."""
        body = ClaimRequest(run_id=run_id, claim_id=secrets.token_hex(16), node=node)  # one id for all tries
        return _parse(ClaimReply, _call(self._http, "claim", self._token, body, _CLAIM_SECONDS, meanwhile))

    def claim_job(self, job_id: int, node: NodeInfo, *, meanwhile: Meanwhile = _nothing) -> JobGiven:
        body = JobClaim(job_id=job_id, claim_id=secrets.token_hex(16), node=node)
        return _parse(JobGiven, _call(self._http, "jobs/claim", self._token, body, _CLAIM_SECONDS, meanwhile))

    def job(self, given: JobGiven) -> "JobLink":
        return JobLink(self._http, given.token, given.fence, f"jobs/{given.job_id}")

    def present(self, node: NodeInfo) -> NodeReply:
        return _parse(NodeReply, _call(self._http, "node", self._token, node))

    def upload_requested(self, checkpoint_id: int, sha256: str, *, offset: int, part: bytes) -> UploadReply:
        """As `AttemptLink.upload`, of a checkpoint that the answer to `present` names."""
        path, headers = f"node/checkpoints/{checkpoint_id}/uploads/{sha256}", _part_headers(offset)
        reply = _call(self._http, path, self._token, part, headers=headers, check=_READ_AGAIN_SECONDS)
        return _parse(UploadReply, reply)

    def unavailable(self, checkpoint_id: int, unavailable: Unavailable) -> None:
        _call(self._http, f"node/checkpoints/{checkpoint_id}/unavailable", self._token, unavailable)

    def lost(self, attempts: list[LostAttempt]) -> None:
        """Report attempts of this node whose processes are dead."""
        _call(self._http, "node/lost", self._token, LostAttempts(attempts=attempts))

    def attempt(self, claimed: ClaimReply) -> "AttemptLink":
        return AttemptLink(self._http, claimed.token, claimed.fence, f"attempts/{claimed.attempt_id}")

    def upload_link(self, claimed: ClaimReply) -> "AttemptLink":
        """The same on separate connections, for another thread; the caller closes it."""
        return AttemptLink(_client(self._url), claimed.token, claimed.fence, f"attempts/{claimed.attempt_id}")


@dataclass(eq=False)
class _Link:
    """Calls made with a token that is good for one attempt or job alone."""

    _http: HttpClient
    _token: str
    _fence: int
    _at: str
    """Its path."""

    def close(self) -> None:
        self._http.close()

    def _post(self, path: str, body: BaseModel | bytes, *pauses: Any, **limits: Any) -> Reply:
        """As `_call`, below the link's path."""
        return _call(self._http, f"{self._at}/{path}", self._token, body, *pauses, **limits)

    def finish(self, finish: Finish | JobFinish, *, patience: float, meanwhile: Meanwhile) -> None:
        """`meanwhile` is called between tries, and while the next is waited for."""
        self._post("finish", finish, patience, meanwhile)

    def fetch(self, file: InputFile, target: Path, *, meanwhile: Meanwhile, patience: float) -> None:
        """Store the file at `target`, which then holds exactly the announced bytes. Raises BadFile when it cannot.

        `patience` counts from the last byte that arrived. `meanwhile` is called often, and what it raises ends the
        fetch. Nothing of a file that did not arrive stays.
        """
        meanwhile()
        if target.is_file() and _sha256(target) == file.sha256:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(target.name + ".part")
        try:
            self._fetch_right(file, temporary, meanwhile, patience)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    def _fetch_right(self, file: InputFile, temporary: Path, meanwhile: Meanwhile, patience: float) -> None:
        for pause in (*_ANEW_AFTER, None):
            try:
                _retry(lambda: self._fetch_once(file, temporary, meanwhile), patience, meanwhile)
                return
            except BadFile as error:
                if pause is None:
                    raise BadFile(
                        f"{error}. It was fetched {len(_ANEW_AFTER) + 1} times: either the platform's copy is damaged, "
                        "or something between it and this worker answers in its place"
                    ) from None
                log.warning("%s. It is fetched again in %.0f s", error, pause)
            _pause(pause, meanwhile)

    def _fetch_once(self, file: InputFile, temporary: Path, meanwhile: Meanwhile) -> None:
        digest, size = hashlib.sha256(), 0
        headers = {"Authorization": f"Bearer {self._token}"}
        with temporary.open("wb") as handle:

            def write(chunk: bytes) -> None:
                nonlocal size
                size += len(chunk)
                if size > file.size:
                    raise BadFile(f"{file.path} arrived with more than the announced {file.size} bytes")
                handle.write(chunk)
                digest.update(chunk)

            try:
                path, limits = f"{self._at}/files/{file.sha256}", {"idle": _SECONDS, "max_bytes": _MAX_REPLY_BYTES}
                reply = self._http.call("GET", path, headers=headers, write=write, check=meanwhile, **limits)
            except HttpError as error:
                why = f"fetching {file.path}: {error}, after {size} of {file.size} bytes"
                if size:
                    log.warning("%s", why)
                raise Unreachable(why, begun=size > 0) from None
        if not reply.is_success:
            _raise_for(reply)
        if digest.hexdigest() != file.sha256:
            raise BadFile(
                f"{file.path} arrived as {size} bytes with SHA-256 {digest.hexdigest()}; "
                f"announced were {file.size} bytes with {file.sha256}"
            )


class AttemptLink(_Link):
    """Calls of one attempt, with its own token."""

    def beat(self, beat: Beat) -> BeatReply:
        return _parse(BeatReply, self._post("heartbeat", beat))

    def records(self, compressed: bytes, *, meanwhile: Meanwhile) -> IngestReply:
        """`meanwhile` is called while the batch is on its way, which on a slow line takes longer than a lease; what it
        raises ends the call."""
        headers = {"X-Cohort-Fence": str(self._fence), "Content-Type": "application/zstd"}
        return _parse(IngestReply, self._post("records", compressed, during=meanwhile, headers=headers))

    def upload(self, sha256: str, *, offset: int, part: bytes) -> UploadReply:
        """Send a part of a checkpoint's file; an empty one asks how far it is. Tried once."""
        return self._upload(f"uploads/{sha256}", offset, part)

    def upload_tokens(self, sha256: str, *, offset: int, part: bytes) -> UploadReply:
        """As `upload`, of a step's token arrays."""
        return self._upload(f"tokens/{sha256}", offset, part)

    def upload_dataset(self, sha256: str, *, offset: int, part: bytes) -> UploadReply:
        """As `upload`, of the dataset that the run sampled."""
        return self._upload(f"dataset/{sha256}", offset, part)

    def _upload(self, path: str, offset: int, part: bytes) -> UploadReply:
        headers = {"X-Cohort-Fence": str(self._fence), **_part_headers(offset)}
        return _parse(UploadReply, self._post(path, part, headers=headers, check=_READ_AGAIN_SECONDS))

    def log(self, *, offset: int, part: bytes, meanwhile: Meanwhile) -> LogReply:
        """Send a part of the log; an empty one asks how far it is. Tried once. `meanwhile` as in `records`."""
        headers = {"X-Cohort-Fence": str(self._fence), **_part_headers(offset)}
        return _parse(LogReply, self._post("log", part, during=meanwhile, headers=headers))


class JobLink(_Link):
    """Calls of one job of the reward lab, with its own token."""

    def beat(self, beat: JobBeat) -> JobBeatReply:
        return _parse(JobBeatReply, self._post("heartbeat", beat))

    def page(self, after: int | None) -> GroupPage:
        """The next stored groups of the run that is re-scored, after the last group of the page before; None: after
        what has scores. Tried once."""
        reply = self._post("samples", PageRequest(fence=self._fence, after=after))
        try:
            text = zstandard.ZstdDecompressor().decompress(reply.body, max_output_size=MAX_PAGE_BYTES)
            return GroupPage.model_validate_json(text)
        except (zstandard.ZstdError, ValidationError) as error:
            raise Unreachable(f"{reply.url} gave a reply that is no page of samples: {error}") from None

    def scores(self, groups: list[GroupRescored], *, patience: float, meanwhile: Meanwhile) -> ScoresReply:
        """Send the scores of groups; the same ones again change nothing. `meanwhile` is called between tries."""
        sent = ScoresSent(fence=self._fence, groups=groups)
        return _parse(ScoresReply, self._post("scores", sent, patience, meanwhile))


def _part_headers(offset: int) -> dict[str, str]:
    return {"X-Cohort-Offset": str(offset), "Content-Type": "application/octet-stream"}


def _client(url: str) -> HttpClient:
    return HttpClient(f"{url.rstrip('/')}/api/worker/v1/", proxies=True)


def _call(
    http: HttpClient,
    path: str,
    token: str,
    body: BaseModel | bytes,
    patience: float = 0.0,
    meanwhile: Meanwhile = _nothing,
    *,
    during: Meanwhile = _nothing,
    check: float = 0.0,
    headers: Mapping[str, str] = _JSON,
) -> Reply:
    """`meanwhile` is called between tries, `during` while one is made, which may take `check` seconds longer."""
    headers = {**headers, "Authorization": f"Bearer {token}"}
    content = body if isinstance(body, bytes) else body.model_dump_json().encode()
    seconds = _SECONDS + check + len(content) / _SLOWEST_LINE

    def once() -> Reply:
        try:
            limits = {"seconds": seconds, "idle": _IDLE_SECONDS + check, "max_bytes": _MAX_REPLY_BYTES}
            reply = http.call("POST", path, headers=headers, body=content, check=during, **limits)
        except HttpError as error:
            raise Unreachable(f"{path}: {error}") from None
        if not reply.is_success:
            _raise_for(reply)
        return reply

    return _retry(once, patience, meanwhile)


Result = TypeVar("Result")


def _retry(once: Callable[[], Result], patience: float, meanwhile: Meanwhile) -> Result:
    """Call until it succeeds; give up with its Unreachable when the next pause would outlast the patience."""
    began, pause = time.monotonic(), 0.5
    while True:
        try:
            return once()
        except Unreachable as error:
            if error.begun:
                began, pause = time.monotonic(), 0.5
            wait = pause * random.uniform(0.5, 1.0)
            if time.monotonic() - began + wait > patience:
                raise
        _pause(wait, meanwhile)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _pause(seconds: float, meanwhile: Meanwhile) -> None:
    over = time.monotonic() + seconds
    meanwhile()
    while (left := over - time.monotonic()) > 0:
        time.sleep(min(left, CHECK_SECONDS))
        meanwhile()


def _raise_for(reply: Reply) -> None:
    if reply.status >= 500 or reply.status == 429:
        raise Unreachable(f"{reply.url}: the platform answered {reply.status}")
    try:
        refusal = Refusal.model_validate_json(reply.body)
    except ValidationError:
        # Not the platform's own answer: a proxy, a redirect to https, another server at this address.
        hint = "; is COHORT_URL the platform's address?"
        if reply.status == 413:
            hint = ": a proxy before the platform takes no body of this size. Let it take 40 MiB"
            hint += " (nginx: client_max_body_size 40m)"
        answered = f"{reply.url} answered {reply.status}, which is not the platform's own answer"
        raise Unreachable(answered + hint) from None
    raise Refused(reply.status, refusal)


def _parse(kind: type[Model], reply: Reply) -> Model:
    try:
        return kind.model_validate_json(reply.body)
    except ValidationError as error:
        raise Unreachable(f"{reply.url} gave a reply that is no {kind.__name__}: {error}") from None


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
