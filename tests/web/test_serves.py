"""A web server that serves a part alone answers 404 for the other, before it reads anything."""

from typing import Any

import pytest

from cohort.server.serves import Serves

ADDRESSES = {"/": "pages", "/p/ours/runs/": "pages", "/api/worker/v1/claim": "workers", "/healthz": "", "/readyz": ""}


@pytest.mark.parametrize("part", ["all", "pages", "workers"])
def test_what_the_other_process_serves_is_not_here(part: Any) -> None:
    def whole(environ: dict[str, Any], start: Any) -> list[bytes]:
        start("200 OK", [])
        return [b"here"]

    statuses: list[str] = []
    for path, of in ADDRESSES.items():
        environ = {"PATH_INFO": path}  # nothing else may be needed: a body is not read
        body = Serves(part, whole)(environ, lambda status, headers: statuses.append(status))
        here = part in ("all", of) or not of
        assert (statuses.pop(), b"here" in body) == (("200 OK", True) if here else ("404 Not Found", False)), path
