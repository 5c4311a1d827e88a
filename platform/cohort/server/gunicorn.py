"""How the web server runs: `gunicorn --config python:cohort.server.gunicorn cohort.server.wsgi:application`.

`cohort up` names this file too, and overrides address, processes and threads on the command line.
"""

from pathlib import Path
from typing import Any

from cohort.base.environment import environment

bind = environment().listen
workers = environment().web_workers
threads = 8
timeout = 60
graceful_timeout = 20
control_socket_disable = True
worker_tmp_dir = "/dev/shm" if Path("/dev/shm").is_dir() else None


def post_worker_init(worker: Any) -> None:
    """In each process, once the application is loaded: its sign of life begins, on a database of this version."""
    from cohort.background.outages import pulse_start  # Django is set up only now
    from cohort.base.schema_version import require_schema_at_start

    require_schema_at_start()
    pulse_start()
