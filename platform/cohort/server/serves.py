"""Which addresses a web server answers: COHORT_SERVES divides pages and calls of workers between two processes, so that
each can have a role in the database with no more rights than it needs (cohort/base/database_roles.py).
"""

from typing import Any, Literal

from cohort.server.limits import WORKERS
from cohort.worker_api.records import Application, Start

_BOTH = ("/healthz", "/readyz")


class Serves:
    """A WSGI application that answers 404 for the part that another process serves, before anything is read."""

    def __init__(self, part: Literal["all", "pages", "workers"], rest: Application) -> None:
        self._part, self._rest = part, rest

    def __call__(self, environ: dict[str, Any], start: Start) -> Any:
        path = environ["PATH_INFO"]
        here = path.startswith(WORKERS) == (self._part == "workers")
        if self._part == "all" or path in _BOTH or here:
            return self._rest(environ, start)
        text = f"This process serves {self._part} alone (COHORT_SERVES).\n".encode()
        start("404 Not Found", [("Content-Type", "text/plain"), ("Content-Length", str(len(text)))])
        return [text]
