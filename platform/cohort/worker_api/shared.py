"""What calls of runs and calls of jobs share: a machine's token, and a file as an answer."""

from collections.abc import Iterator
from typing import IO, Any

from django.http import HttpRequest, StreamingHttpResponse
from ninja.security import HttpBearer

from cohort.nodes.models import Node
from cohort.nodes.services import node_by_token


class NodeToken(HttpBearer):
    """The token of a machine; it may claim."""

    def authenticate(self, request: HttpRequest, token: str) -> Node | None:
        return node_by_token(token)


def asking(request: HttpRequest) -> Any:
    """What the token stands for: a Node, an Attempt or a LabJob, as the call's `auth` says."""
    return request.auth  # type: ignore[attr-defined]


def streamed(size: int, chunks: Iterator[bytes]) -> StreamingHttpResponse:
    response = StreamingHttpResponse(chunks, content_type="application/octet-stream")
    response["Content-Length"] = str(size)
    return response


def chunks_of(handle: IO[bytes]) -> Iterator[bytes]:
    with handle:
        while chunk := handle.read(1 << 20):
            yield chunk
