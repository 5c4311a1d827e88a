"""A process of the web server: gunicorn starts, watches and stops it, waitress reads and writes its connections."""

import os
import time
from typing import Any

from gunicorn.workers.base import Worker
from waitress import wasyncore
from waitress.task import ThreadedTaskDispatcher


class WebProcess(Worker):  # type: ignore[misc]
    """gunicorn kills one whose loop hangs (`timeout`). On SIGTERM it takes no more requests, and ends once those that
    have arrived whole are answered, or after `graceful_timeout`."""

    def run(self) -> None:
        # Django is set up only now.
        from django.conf import settings

        from cohort.server.connections import Server
        from cohort.server.limits import FORM_BYTES, WORKERS, body_limit, larger_limits

        connections: dict[int, Any] = {}
        pools = {pool: ThreadedTaskDispatcher() for pool in settings.COHORT_WEB_THREADS}
        for pool, threads in settings.COHORT_WEB_THREADS.items():
            pools[pool].set_thread_count(threads)
        servers = [
            Server(
                self.wsgi,
                listener.sock,
                map=connections,
                pools=pools,
                body_limit=body_limit,
                small=FORM_BYTES,
                room=4 * max(larger_limits().values()),
                workers=WORKERS,
                trusted_proxy=settings.COHORT_TRUSTED_PROXY,
            )
            for listener in self.sockets
        ]
        self._wake = servers[0].pull_trigger
        while self.alive and self.ppid == os.getppid():
            self._turn(servers, connections)
        for server in servers:
            server.stop_accepting()
        ends = time.monotonic() + self.cfg.graceful_timeout
        while time.monotonic() < ends and sum(server.close_unused() for server in servers):
            self._turn(servers, connections)

    def _turn(self, servers: list[Any], connections: dict[int, Any]) -> None:
        self.notify()
        wasyncore.loop(timeout=1, use_poll=True, map=connections, count=1)
        for server in servers:
            server.close_late()

    def handle_exit(self, sig: int, frame: Any) -> None:
        super().handle_exit(sig, frame)
        if wake := getattr(self, "_wake", None):
            wake()
