"""The tests' own database and folders: made for the run, gone after it, whatever services the machine has.

COHORT_TEST_DATABASE_URL takes a given PostgreSQL server instead of the embedded one. Nothing is left behind: not after
Ctrl-C or SIGTERM, and after SIGKILL no process either, because the server ends with this one.
"""

import atexit
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from cohort.embedded.postgres import Postgres
from tests.processes import belonging_to, grpo

# A busy machine is no defect, and what was fit to land yesterday is so today: `--hypothesis-profile=search` draws anew.
hypothesis.settings.register_profile(
    "search", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], derandomize=False
)
hypothesis.settings.register_profile("cohort", hypothesis.settings.get_profile("search"), derandomize=True)
hypothesis.settings.load_profile("cohort")

GOLDEN = Path(__file__).with_name("golden")

signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what follows runs then too
_SCRATCH = Path(tempfile.mkdtemp(prefix="cohort-tests-"))
atexit.register(shutil.rmtree, _SCRATCH, ignore_errors=True)


def _database_url() -> str:
    if given := os.environ.get("COHORT_TEST_DATABASE_URL"):
        return given
    # Nobody needs this database after a power cut, so it does not wait for the disk.
    quick = ("fsync", "synchronous_commit", "full_page_writes")
    server = Postgres(_SCRATCH / "pg", _SCRATCH / "pg.log", options=tuple(f"--{name}=off" for name in quick))
    server.start()
    atexit.register(server.stop)
    return server.url


for _name in [name for name in os.environ if name.startswith("COHORT_")]:
    if _name != "COHORT_REQUIRE" and not _name.startswith(("COHORT_TEST_", "COHORT_CHAOS_")):  # those are for the tests
        del os.environ[_name]
os.environ.update(
    DJANGO_SETTINGS_MODULE="cohort.settings",  # here and not in pyproject: the lines above must come first
    COHORT_MODE="test",
    COHORT_HOME=str(_SCRATCH / "home"),
    COHORT_DATABASE_URL=_database_url(),
    COHORT_LOG_ORIGIN="test.example/log",
    COHORT_BROKER_URL=os.environ.get("COHORT_TEST_BROKER_URL", "filesystem://"),
    HF_HUB_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
)

from cohort.evidence.keys import generate  # noqa: E402

(_SCRATCH / "home").mkdir()
generate("test.example/log").write(_SCRATCH / "home" / "signing-key.pem")

import django  # noqa: E402  after the environment it reads

django.setup()

import psycopg  # noqa: E402
from django.contrib.contenttypes.management import create_contenttypes  # noqa: E402
from django.db import OperationalError, transaction  # noqa: E402
from django.db.backends.base.base import BaseDatabaseWrapper  # noqa: E402
from django.db.backends.postgresql.operations import DatabaseOperations  # noqa: E402
from django.db.backends.signals import connection_created  # noqa: E402
from django.db.models.signals import post_migrate  # noqa: E402


def _tables_may_be_emptied(connection: BaseDatabaseWrapper, **_: object) -> None:
    """After a test with transactions of its own every table is emptied, events too, which nobody else may do."""
    with connection.cursor() as cursor:
        cursor.execute("SET cohort.tests_empty_tables = on")


connection_created.connect(_tables_may_be_emptied)

_FLUSHES = 5


def _emptied_in_the_end(self: DatabaseOperations, sql_list: list[str]) -> None:
    """Empties what a test filled. TRUNCATE, which Django would send for every table there is, makes new files for all
    of them and their indexes; of these few rows DELETE is quicker, past foreign keys, as all of them go.

    A live server may still answer a page that is closed by now; PostgreSQL then ends one of the two, and that may be
    the cleaning. The answer is over soon.
    """
    tables = [self.quote_name(name) for name in self.connection.introspection.django_table_names(only_existing=True)]
    filled = " UNION ALL ".join(f"SELECT '{name}' WHERE EXISTS (SELECT 1 FROM {name})" for name in tables)
    for left in reversed(range(_FLUSHES)):
        try:
            with transaction.atomic(using=self.connection.alias), self.connection.cursor() as cursor:
                cursor.execute(filled)
                for (name,) in cursor.fetchall():
                    cursor.execute("SET LOCAL session_replication_role = replica")
                    cursor.execute(f"DELETE FROM {name}")
            return
        except OperationalError as error:
            if not (left and isinstance(error.__cause__, psycopg.errors.DeadlockDetected)):
                raise
    raise AssertionError("the last try returns or raises")


DatabaseOperations.execute_sql_flush = _emptied_in_the_end  # type: ignore[method-assign]
# What Django would write again after each such test, and nothing here reads: a row for each model and each permission.
post_migrate.disconnect(dispatch_uid="django.contrib.auth.management.create_permissions")
post_migrate.disconnect(create_contenttypes)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/ instead of comparing with it")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, Any], None]:
    """Compares a value with the file of this name in tests/golden/: text as it is, anything else as sorted JSON. After
    an intended change: pytest --update-golden, then review the diff."""

    def compare(name: str, value: Any) -> None:
        path = GOLDEN / name
        text = value if isinstance(value, str) else json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
        text = text.rstrip("\n") + "\n"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"tests/golden/{name} is missing; write it with pytest --update-golden"
        assert text == path.read_text(encoding="utf-8"), f"tests/golden/{name} differs"

    return compare


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """An empty folder that the database's own user can reach. pytest closes its own to all others, which as root (when
    the database runs as another user) would lock the server out as soon as a second session starts."""
    folder = Path(tempfile.mkdtemp(prefix="cohort-tests-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def cohort_home(open_folder: Path) -> Iterator[Path]:
    """A home for one test; whatever the test did, no process of it may be left."""
    home = open_folder / "home"
    yield home
    left = belonging_to(home)
    for process in left:
        process.kill()
    assert [" ".join(process.cmdline()) for process in left] == []


@pytest.fixture(scope="session")
def hardly_taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's base model after a few steps of its cold start: made in seconds, and nearly always wrong."""
    folder = tmp_path_factory.mktemp("models") / "demo-adder"
    grpo("cold-start", "--out", str(folder), "--steps", "8")
    return folder


@pytest.fixture
def demo_home(cohort_home: Path, hardly_taught: Path) -> Path:
    """A home in which `cohort demo` finds its base model made."""
    shutil.copytree(hardly_taught, cohort_home / "models" / "demo-adder")
    return cohort_home
