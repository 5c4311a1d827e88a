"""A database of another version of Cohort is refused by migrations, web server, workers and commands, in words."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder
from psycopg.conninfo import make_conninfo

from cohort.base.environment import environment
from cohort.base.schema_version import OtherSchema, connect, require_schema, require_schema_at_start


def newer() -> None:
    MigrationRecorder(connection).record_applied("runs", "0999_of_tomorrow")


def older() -> None:
    MigrationRecorder(connection).record_unapplied("runs", "0002_guards")


@pytest.mark.django_db
def test_this_version_s_database_is_taken_and_an_older_one_is_migrated() -> None:
    require_schema(connection)
    older()
    with pytest.raises(OtherSchema, match=r"lacks runs\.0002_guards.*cohort manage migrate"):
        require_schema(connection)


@pytest.mark.django_db
def test_a_newer_one_is_not_migrated() -> None:
    newer()
    for refusing in (lambda: require_schema(connection), lambda: call_command("migrate", verbosity=0)):
        with pytest.raises(OtherSchema, match=r"a newer Cohort: runs\.0999_of_tomorrow\. Install that version"):
            refusing()


def part(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A module, run on the tests' database until it ends."""
    database = make_conninfo(environment().database_url, dbname=connection.settings_dict["NAME"])
    own = {"COHORT_MODE": "embedded", "COHORT_DATABASE_URL": database, "COHORT_SECRET_KEY": "x" * 50, **more}
    argv = [sys.executable, "-m", *words]
    return subprocess.run(argv, env=os.environ | own, cwd=folder, capture_output=True, text=True, check=False)


WEB = [
    "gunicorn",
    "--config",
    "python:cohort.server.gunicorn",
    "--bind",
    "127.0.0.1:0",
    "cohort.server.wsgi:application",
]
WORKER = ["celery", "-A", "cohort.background.worker", "worker", "--queues", "platform.seal", "--pool", "threads"]


NEWER, OLDER = (newer, "a newer Cohort: runs.0999"), (older, "lacks runs.0002_guards")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("words", "change", "text"), [(WEB, *NEWER), (WORKER, *OLDER)], ids=["web server", "worker"])
def test_no_part_starts_on_it(tmp_path: Path, words: list[str], change: Callable[[], None], text: str) -> None:
    change()
    done = part(tmp_path, *words)
    assert done.returncode not in (0, None)
    assert text in done.stderr


COHORT = "cohort.cli.main"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("words", "change", "text"), [("user ann", *NEWER), ("node --list", *OLDER), ("audit check", *NEWER)]
)
def test_no_command_uses_it(tmp_path: Path, words: str, change: Callable[[], None], text: str) -> None:
    change()
    done = part(tmp_path, COHORT, *words.split())
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("cohort: ")
    assert text in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.django_db(transaction=True)
def test_cohort_manage_works_on_it(tmp_path: Path) -> None:
    older()
    done = part(tmp_path, COHORT, "manage", "showmigrations", "runs")
    assert (done.returncode, "[ ] 0002_guards" in done.stdout) == (0, True)


def test_a_command_whose_database_does_not_answer_says_so(tmp_path: Path) -> None:
    done = part(tmp_path, COHORT, "user", "ann", COHORT_DATABASE_URL=f"postgresql://ann@/cohort?host={tmp_path}")
    assert done.returncode == 1
    assert done.stderr.startswith("cohort: the database does not answer: ")
    assert "Traceback" not in done.stderr


@pytest.mark.django_db
def test_a_part_whose_database_does_not_answer_starts_and_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "HOST", "/nonexistent")
    with pytest.raises(OperationalError):
        require_schema(connect(seconds=1))
    require_schema_at_start()
