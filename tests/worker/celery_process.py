"""A real Celery worker process, as an operator starts it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cohort.environment import environment
from tests.processes import DEADLINE, clean_environment
from tests.worker.conftest import Site


def worker_variables(site: Site, folder: Path) -> dict[str, str]:
    """The environment of a worker with its runs in this folder."""
    return clean_environment() | {
        "COHORT_URL": site.url,
        "COHORT_NODE_TOKEN": site.node_token,
        "COHORT_BROKER_URL": environment().broker_url,
        "COHORT_HOME": str(environment().home_folder),
        "COHORT_RUNS_DIR": str(folder / "runs"),
    }


@contextmanager
def celery_worker(site: Site, folder: Path, *words: str, **variables: str) -> Iterator["subprocess.Popen[bytes]"]:
    """`celery -A worker.celery_app worker`, which logs to worker.log; ended by SIGTERM."""
    with (folder / "worker.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "worker.celery_app", "worker", "--loglevel", "INFO", *words],
            env=worker_variables(site, folder) | variables,
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
