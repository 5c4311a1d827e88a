"""MLflow's tracking server for a benchmark, as `make bench-env` installs it."""

import http.client
import json
import os
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cohort_web import wait_for

from cohort.cli.embedded.postgres import Postgres

PEERS = Path(__file__).resolve().parents[2] / ".venv-bench/bin"


def database_url(postgres: Postgres) -> str:
    """Of the database `mlflow` in it, as SQLAlchemy takes it."""
    return f"postgresql+psycopg2://postgres@/mlflow?host={quote(str(postgres.sockets), safe='/')}"


class MlflowServer:
    """`mlflow server` as it is shipped, two workers, over a fresh database."""

    def __init__(self, folder: Path, database_url: str, port: int) -> None:
        self.folder, self.url, self.port = folder, database_url, port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.folder.mkdir()
        # fmt: off
        words = [
            str(PEERS / "mlflow"), "server", "--backend-store-uri", self.url, "--host", "127.0.0.1",
            "--port", str(self.port), "--workers", "2", "--default-artifact-root", str(self.folder / "artifacts"),
        ]
        # fmt: on
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("COHORT_", "DJANGO_"))}
        kept |= {"PATH": f"{PEERS}:{os.environ['PATH']}", "DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with open(self.folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                words, env=kept, cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        wait_for(f"http://127.0.0.1:{self.port}/health", self._process, self.folder / "server.log")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)

    def call(self, name: str, body: dict[str, object]) -> dict[str, Any]:
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        link.request("POST", f"/api/2.0/mlflow/{name}", json.dumps(body), {"Content-Type": "application/json"})
        answer = link.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"MLflow answered {answer.status}: {content[:500]!r}")
        return dict(json.loads(content))
