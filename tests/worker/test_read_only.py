"""The platform's parts as docker/compose.yaml starts them, with a root that is read-only but for their volumes."""

import os
import re
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import yaml
from django.db import connection
from psycopg.conninfo import make_conninfo

from cohort.base.environment import environment
from cohort.evidence.keys import generate
from cohort.runs.models import ServiceBeat
from tests.needs import needs
from tests.processes import answers, clean_environment, free_port, wait_for
from tests.worker.conftest import Site, logged

DOCKER = Path(__file__).resolve().parents[2] / "docker"
SERVICES = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["services"]
HOME = "/var/lib/cohort"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """With the folders that the images make, and a key to sign with."""
    needs("bwrap")
    made = tmp_path / "home"
    for folder in ("artifacts", "signing", "scratch", "runs", ".cache"):
        (made / folder).mkdir(parents=True)
    generate("cohort.example.org/log").write(made / "signing" / "key.pem")
    return made


def started(name: str, home: Path, **more: str) -> AbstractContextManager["subprocess.Popen[bytes]"]:
    """A service with its own command, variables and volumes; secrets are in variables, and no broker answers."""
    service = SERVICES[name]
    settings = connection.settings_dict
    password = settings["PASSWORD"] or "not asked for, and required of a database on the network"
    database = make_conninfo(environment().database_url, dbname=settings["NAME"], password=password)
    socket = [settings["HOST"]] if settings["HOST"].startswith("/") else []
    image = (DOCKER / f"{service['image'].removeprefix('cohort-')}.Dockerfile").read_text(encoding="utf-8")
    words = service.get("command") or yaml.safe_load(re.findall(r"^CMD (.*)$", image, re.MULTILINE)[-1])
    box = ["bwrap", "--die-with-parent", "--unshare-pid", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    for folder in service["tmpfs"]:
        box += ["--tmpfs", folder.split(":")[0]]
    for folder in (*socket, sys.prefix, str(DOCKER.parent), str(home)):  # which may lie below what is covered now
        box += ["--ro-bind", folder, folder]
    for volume in service["volumes"]:
        source, target = volume.split(":")[:2]
        if target.startswith(HOME):
            inside = target.replace(HOME, str(home))
            box += ["--bind", inside, inside]
        elif source == "uploads":
            box += ["--tmpfs", target]
    variables = {
        **{name: str(value) for name, value in service["environment"].items() if not name.endswith("_FILE")},
        "COHORT_MODE": "production",
        "COHORT_PUBLIC_URL": "https://cohort.example.org",
        "COHORT_LOG_LEVEL": "INFO",
        "COHORT_HOME": str(home),
        "HOME": str(home),
        "COHORT_MODELS_DIR": str(home),
        "COHORT_DATABASE_URL": database,
        "COHORT_SECRET_KEY": "a secret of more than fifty characters that nobody guesses",
        "COHORT_BROKER_URL": "amqp://cohort:password@127.0.0.1:9//",
        "COHORT_SIGNING_KEY_FILE": str(home / "signing" / "key.pem"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        **({"DJANGO_SETTINGS_MODULE": "cohort.settings"} if service["image"] == "cohort-web" else {}),
        **more,
    }
    given = {name: value for name, value in variables.items() if not value.startswith("$")}
    return logged([*box, *words], home.parent / "log", clean_environment() | given)


@pytest.mark.parametrize("name", ["platform-worker", pytest.param("seal-worker", marks=pytest.mark.slow)])
def test_a_platform_worker_starts_and_looks_for_its_broker(site: Site, home: Path, name: str) -> None:
    log = home.parent / "log"
    with started(name, home) as process:
        wait_for(lambda: "Cannot connect to amqp" in log.read_text(), lambda: log.read_text(), process)
        if name == "platform-worker":
            wait_for(ServiceBeat.objects.filter(name="reconciler").exists, "it looks at the leases", process)
            wait_for(lambda: "beat: Starting" in log.read_text(), "beat starts", process)
    assert "Read-only file system" not in log.read_text()


@pytest.mark.parametrize("name", [pytest.param("web", marks=pytest.mark.slow), "ingest"])
def test_a_web_server_answers(site: Site, home: Path, name: str) -> None:
    log, port = home.parent / "log", free_port()
    with started(name, home, COHORT_LISTEN=f"127.0.0.1:{port}") as process:
        wait_for(lambda: answers(f"http://127.0.0.1:{port}"), lambda: log.read_text(), process)
    assert "Read-only file system" not in log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpu-worker", "lab-worker"])
def test_a_nodes_worker_starts_and_looks_for_its_broker(site: Site, home: Path, name: str) -> None:
    log = home.parent / "log"
    own = {"COHORT_URL": site.url, "COHORT_NODE_TOKEN": site.node_token, "COHORT_RUNS_DIR": str(home / "runs")}
    with started(name, home, **own) as process:
        wait_for(lambda: "Cannot connect to amqp" in log.read_text(), lambda: log.read_text(), process)
    assert "Read-only file system" not in log.read_text()
