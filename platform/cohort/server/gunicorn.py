"""How the web server runs: `gunicorn --config python:cohort.server.gunicorn cohort.server.wsgi:application`.

`cohort up` names this file too, and overrides address and processes on the command line.
"""

import gc
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cohort.base.environment import environment

bind = environment().listen
workers = environment().web_workers
worker_class = "cohort.server.worker.WebProcess"
timeout = 60
graceful_timeout = 20
control_socket_disable = True
worker_tmp_dir = "/dev/shm" if Path("/dev/shm").is_dir() else None
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def post_worker_init(worker: Any) -> None:
    """In each process, once the application is loaded: its sign of life begins, on a database of this version."""
    from django.urls import get_resolver

    from cohort.background.outages import pulse_start  # Django is set up only now
    from cohort.base.schema_version import require_schema_at_start

    require_schema_at_start()
    assert get_resolver().url_patterns, "loads every view"
    gc.collect()
    gc.freeze()  # else each full collection looks through all that was loaded, for 85 ms of some request
    if environment().serves == "pages":
        return  # no worker calls it
    if given := environment().pulse_url:
        pulse_start(given)
    else:  # by its public name: it may refuse others
        pulse_start(_own_address(worker.sockets[0].sock), urlsplit(environment().public_url).netloc)


def _own_address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    host = _ANY_ADDRESS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
