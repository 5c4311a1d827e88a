"""Whether the database's tables are those of this version: what its migrations list says, before anything uses it."""

import logging
from contextlib import closing
from typing import Any, ClassVar

from django.db import DEFAULT_DB_ALIAS, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.loader import MigrationLoader

from grpo_core.errors import GrpoError

log = logging.getLogger(__name__)


class OtherSchema(GrpoError):
    """The database was migrated by another version of Cohort. The message names what to do."""

    code: ClassVar[str] = "other_schema"


def require_schema(connection: BaseDatabaseWrapper) -> None:
    """Raise OtherSchema unless exactly the migrations of this version were applied. Raises OperationalError when the
    database does not answer."""
    loader = _not_newer(connection)
    if missing := [_name(key) for key in sorted(loader.graph.nodes) if key not in loader.applied_migrations]:
        raise OtherSchema(
            f"the database lacks {_listed(missing)}: it was migrated by an older Cohort, or never. Run `cohort manage "
            "migrate` with the address of its owner, then start again."
        )


def require_schema_at_start() -> None:
    """The same for a process that starts. One whose database does not answer starts all the same, and waits for it as
    it does later."""
    with closing(connect(seconds=5)) as connection:
        try:
            require_schema(connection)
        except OperationalError as error:
            log.warning("started without a look at the database's migrations, as it does not answer: %s", error)


def connect(*, seconds: int) -> BaseDatabaseWrapper:
    """A connection past the pool, whose callers would wait for long where the database does not answer."""
    connection = connections.create_connection(DEFAULT_DB_ALIAS)
    options = {name: value for name, value in connection.settings_dict["OPTIONS"].items() if name != "pool"}
    connection.settings_dict = {**connection.settings_dict, "OPTIONS": {**options, "connect_timeout": seconds}}
    return connection


def refuse_newer(*, using: str, **_: Any) -> None:
    """Receiver of pre_migrate. Raises OtherSchema for a database of a newer version."""
    _not_newer(connections[using])


def _not_newer(connection: BaseDatabaseWrapper) -> MigrationLoader:
    loader = MigrationLoader(connection)
    known = set(loader.disk_migrations)
    known |= {replaced for migration in loader.disk_migrations.values() for replaced in migration.replaces}
    if unknown := [_name(key) for key in sorted(set(loader.applied_migrations) - known)]:
        raise OtherSchema(
            f"this database was migrated by a newer Cohort: {_listed(unknown)}. Install that version, or restore a "
            "backup from before the upgrade."
        )
    return loader


def _name(key: tuple[str, str]) -> str:
    return ".".join(key)


def _listed(names: list[str]) -> str:
    """The first few."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
