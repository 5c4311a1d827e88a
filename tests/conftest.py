"""The tests' own folders, environment and databases, gone after the run, whatever services the machine has.

No service starts at import: PostgreSQL comes up for the first test of a process that needs it (tests/database.py).
After Ctrl-C or SIGTERM nothing is left behind, and after SIGKILL no process either: the server ends with this one.
"""

import atexit
import gc
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from cohort.cli.embedded.postgres import Postgres
from tests.processes import belonging_to, grpo

if TYPE_CHECKING:
    from pytest_django.plugin import DjangoDbBlocker

    from tests.database import Databases

# A busy machine is no defect, and what was fit to land yesterday is so today: `--hypothesis-profile=search` draws anew.
hypothesis.settings.register_profile(
    "search", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], derandomize=False
)
hypothesis.settings.register_profile("cohort", hypothesis.settings.get_profile("search"), derandomize=True)
hypothesis.settings.load_profile("cohort")

LONGEST = ("tests/e2e/", "tests/web/test_journeys.py", "tests/worker/test_celery_worker.py")
GOLDEN = Path(__file__).with_name("golden")
_SCRATCH = Path(tempfile.mkdtemp(prefix="cohort-tests-"))
_GIVEN_URL = os.environ.get("COHORT_TEST_DATABASE_URL")
# Nobody needs this database after a power cut, so it does not wait for the disk.
_QUICK = tuple(f"--{name}=off" for name in ("fsync", "synchronous_commit", "full_page_writes"))
_SERVER = Postgres(_SCRATCH / "pg", _SCRATCH / "pg.log", options=_QUICK)  # started by django_db_setup

signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what follows runs then too
atexit.register(shutil.rmtree, _SCRATCH, ignore_errors=True)
atexit.register(_SERVER.stop)

for _name in [name for name in os.environ if name.startswith("COHORT_")]:
    if _name != "COHORT_REQUIRE" and not _name.startswith(("COHORT_TEST_", "COHORT_CHAOS_")):  # those are for the tests
        del os.environ[_name]
os.environ.update(
    DJANGO_SETTINGS_MODULE="cohort.settings",  # here and not in pyproject: the lines above must come first
    COHORT_MODE="test",
    COHORT_HOME=str(_SCRATCH / "home"),
    COHORT_DATABASE_URL=_GIVEN_URL or _SERVER.url,
    COHORT_LOG_ORIGIN="test.example/log",
    COHORT_BROKER_URL=os.environ.get("COHORT_TEST_BROKER_URL", "filesystem://"),
    HF_HUB_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
)
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # pytest's processes share the cores out
    os.environ.setdefault(_name, "1")

from cohort.evidence.keys import generate  # noqa: E402

(_SCRATCH / "home").mkdir()
generate("test.example/log").write(_SCRATCH / "home" / "signing-key.pem")

import django  # noqa: E402  after the environment it reads

django.setup()

from django.contrib.auth.hashers import Argon2PasswordHasher  # noqa: E402

from tests.factories.stock import stock_of  # noqa: E402

# Argon2 as in use, with the least work: nobody here is to resist guessing.
Argon2PasswordHasher.time_cost, Argon2PasswordHasher.memory_cost = 1, 64


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/ instead of comparing with it")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None):
        # Inherited by xdist's processes it would have pytest-django read the settings before the lines above ran there
        del os.environ["DJANGO_SETTINGS_MODULE"]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays: looking for garbage in it took a fifth of the collection, and more with each test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first, so that two processes end together."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


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


@pytest.fixture(scope="session")
def django_db_setup(django_test_environment: None, django_db_blocker: "DjangoDbBlocker") -> "Iterator[Databases]":
    """In place of pytest-django's: the databases of this process."""
    from tests.database import Databases

    if not _GIVEN_URL:
        _SERVER.start()
    databases = Databases(_GIVEN_URL or _SERVER.url)
    yield databases
    with django_db_blocker.unblock():
        databases.close()


@pytest.fixture
def _django_db_helper(
    request: pytest.FixtureRequest, django_db_setup: "Databases", django_db_blocker: "DjangoDbBlocker"
) -> Iterator[None]:
    """In place of pytest-django's, which empties every table after a test that commits: such a test has a database of
    its own, all others roll back."""
    from django.core.cache import cache
    from django.test import TestCase

    cache.clear()  # of rows that are gone; others may get their ids
    marker, stock = request.node.get_closest_marker("django_db"), stock_of(request.fixturenames)
    commits = {"transactional_db", "live_server"} & set(request.fixturenames)
    with django_db_blocker.unblock():
        if commits or (marker and marker.kwargs.get("transaction")):
            with django_db_setup.fresh(stock):
                yield
            return
        django_db_setup.shared(stock)
        atomics = TestCase._enter_atomics()
        try:
            yield
        finally:
            TestCase._rollback_atomics(atomics)


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
