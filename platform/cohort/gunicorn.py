"""How the web server runs in production: `gunicorn --config python:cohort.gunicorn cohort.wsgi:application`.

`cohort up` passes its own options instead.
"""

from pathlib import Path

from cohort.environment import environment

bind = environment().listen
workers = environment().web_workers
threads = 8
timeout = 60
graceful_timeout = 20
control_socket_disable = True
worker_tmp_dir = "/dev/shm" if Path("/dev/shm").is_dir() else None
