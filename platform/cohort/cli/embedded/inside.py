"""Makes a command's own process part of the platform, and takes it out again. Needs nothing of the embedded parts, so
that `cohort manage` works in an installation that has only the extra [platform].
"""

import os

from cohort.cli.embedded.home import HomeError


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
