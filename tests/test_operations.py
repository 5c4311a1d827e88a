"""What operators set: docs/operations.md names every variable, and docker/compose.yaml sets no other."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import yaml

from cohort.base.environment import Environment as PlatformEnvironment
from tests.processes import clean_environment
from tests.variables import PAGE, page_with, table
from worker.environment import Environment as WorkerEnvironment

COMPOSE = yaml.safe_load((Path(__file__).parents[1] / "docker" / "compose.yaml").read_text(encoding="utf-8"))
PROGRAMS = {"cohort-web": PlatformEnvironment, "cohort-worker": WorkerEnvironment}
SERVICES = {name: row for name, row in COMPOSE["services"].items() if row.get("image") in PROGRAMS}


def test_the_table_of_variables_is_current_and_describes_each() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_with(table()), "run: python -m tests.variables"
    rows = re.findall(r"^\| `(COHORT_\w+)` \|.*\| (.*) \|$", table(), re.MULTILINE)
    assert len(rows) > 15
    assert [name for name, what in rows if not what] == []


def test_compose_sets_only_variables_that_the_program_reads_and_gives_workers_no_secret() -> None:
    assert Counter(service["image"] for service in SERVICES.values()) == {"cohort-web": 5, "cohort-worker": 2}
    for name, service in SERVICES.items():
        known = {f"COHORT_{field.upper()}" for field in PROGRAMS[service["image"]].model_fields}
        ours = {variable for variable in service["environment"] if variable.startswith("COHORT_")}
        assert sorted(ours - known) == [], name
        if service["image"] == "cohort-worker":
            assert not [
                variable for variable in service["environment"] if "DATABASE" in variable or "SECRET" in variable
            ]
            assert not [name for name in service["secrets"] if name.startswith(("database", "secret", "broker"))]


def test_the_web_server_listens_where_the_variables_say(tmp_path: Path) -> None:
    settings = {
        "COHORT_MODE": "production",
        "COHORT_HOME": str(tmp_path),
        "COHORT_SECRET_KEY": "secret" * 10,
        "COHORT_DATABASE_URL": "postgresql:///none",
        "COHORT_BROKER_URL": "amqp://cohort:password@broker",
        "COHORT_LISTEN": "0.0.0.0:8499",
        "COHORT_WEB_WORKERS": "3",
    }
    words = [
        sys.executable,
        "-m",
        "gunicorn",
        "--print-config",
        "--config",
        "python:cohort.server.gunicorn",
        "cohort.server.wsgi",
    ]
    environment = clean_environment() | settings
    done = subprocess.run(words, env=environment, cwd="/", capture_output=True, text=True, check=True)
    assert re.search(r"^bind +=.*0\.0\.0\.0:8499", done.stdout, re.MULTILINE)
    assert re.search(r"^workers +=.*3", done.stdout, re.MULTILINE)


def test_every_test_that_the_threat_model_names_is_there() -> None:
    root = PAGE.parents[1]
    named = set(re.findall(r"`(tests/[\w/.]+)`", (PAGE.parent / "threat-model.md").read_text(encoding="utf-8")))
    assert len(named) > 30
    assert sorted(name for name in named if not (root / name).is_file()) == []
