"""Reach a home's database from another command: the running one's, or one started for the moment. Makes that command's
own process part of the platform, and takes it out again.

Needs nothing of the embedded parts before it starts a database, so that `cohort manage` works in an installation that
has only the extra [platform].
"""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager

from cohort.cli.embedded.home import Home, HomeError


def enter(environment: dict[str, str]) -> None:
    """Make this process part of the platform: its variables, then Django, which logs only warnings to a terminal."""
    os.environ.update(environment)
    os.environ.setdefault("COHORT_LOG_LEVEL", "WARNING")
    import django
    from django.core.exceptions import ImproperlyConfigured

    try:
        django.setup()
    except ImproperlyConfigured as fault:
        raise HomeError(str(fault)) from None


def leave() -> None:
    """Close this process's own connections, so that the database can end without a complaint."""
    from django.conf import settings

    if settings.configured:
        from django.db import connection

        connection.close()
        connection.close_pool()  # type: ignore[attr-defined]  # of the PostgreSQL backend, the only one here


@contextmanager
def database(home: Home, purpose: str) -> Iterator[None]:
    """As `any_database`, of one that this version migrated. Raises OtherSchema for another, HomeError when it does not
    answer."""
    with any_database(home, purpose):
        from django.db import OperationalError

        from cohort.base.schema_version import connect, require_schema

        with closing(connect(seconds=5)) as connection:
            try:
                require_schema(connection)
            except OperationalError as error:
                raise HomeError(f"the database does not answer: {error}") from None
        yield


@contextmanager
def any_database(home: Home, purpose: str) -> Iterator[None]:
    """Django set up over the home's database while the block runs, whatever version migrated it.

    With COHORT_DATABASE_URL (or its _FILE) set, as in production, the environment is used unchanged and the home is
    not read.
    """
    if os.environ.get("COHORT_DATABASE_URL") or os.environ.get("COHORT_DATABASE_URL_FILE"):
        enter({"DJANGO_SETTINGS_MODULE": "cohort.settings"})
        yield
        return
    if not home.exists():
        raise HomeError(
            f"there is no Cohort in {home.path}. Start `cohort up` there once, name another folder with COHORT_HOME, "
            "or set COHORT_DATABASE_URL and the other variables of docs/operations.md."
        )
    if (state := home.published()) is not None:
        enter(home.platform_environment(state["database_url"], state["address"]))
        yield
        return
    from cohort.cli.embedded.postgres import Postgres

    with home.locked(purpose):
        postgres = Postgres(home.database, home.logs / "postgres.log")
        try:
            postgres.start()
            enter(home.platform_environment(postgres.url))
            yield
        finally:
            leave()
            postgres.stop()
