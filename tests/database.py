"""The tests' databases: each stock of rows is made once for a pytest process and copied (CREATE DATABASE … TEMPLATE),
once for the tests that roll back and afresh for each test that commits. So nothing has to be emptied after a test.
"""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
from django.conf import settings
from django.core.management import call_command
from django.db import connection, connections
from psycopg import sql
from psycopg.pq import TransactionStatus

from cohort.base.database_roles import INGEST, WEB
from tests.factories.stock import STOCKS


class Databases:
    """Makes, selects and drops databases of one server; Django's default connection goes to the selected one.

    A stock is a name in STOCKS; the empty name is that of migrated tables without rows.
    """

    def __init__(self, url: str) -> None:
        self._admin = psycopg.connect(url, autocommit=True)
        for role in (WEB, INGEST):
            with suppress(psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
                self._admin.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(role)))
        self._prefix = f"cohort_tests_{os.getpid()}"
        self._made: list[str] = []
        self._selected = ""
        self._numbers = itertools.count(1)

    def shared(self, stock: str) -> None:
        """Select the copy of all tests that roll back."""
        name = f"{self._prefix}_{stock}_shared"
        if name not in self._made:
            self._create(name, self._template(stock))
        if name != self._selected:
            self._select(name)

    @contextmanager
    def fresh(self, stock: str) -> Iterator[None]:
        """A copy for one test, dropped after it, whatever connections are left."""
        number = next(self._numbers)
        name = f"{self._prefix}_{stock}_{number}"
        self._create(name, self._template(stock))
        self._select(name)
        with connections["default"].cursor() as cursor:  # files on disk are named by ids, and outlive the database
            sequences = "SELECT format('%%I.%%I', schemaname, sequencename)::regclass AS name FROM pg_sequences"
            cursor.execute(
                f"SELECT setval(name, %s) FROM ({sequences} WHERE sequencename !~ '^audit_') AS ids", [number * 1000]
            )
        try:
            yield
        finally:
            connections.close_all()
            self._drop(name)
            self._selected = ""

    def close(self) -> None:
        connections.close_all()
        for name in list(self._made):
            self._drop(name)
        for role in (WEB, INGEST):  # another process of the tests may still need it
            with suppress(psycopg.errors.DependentObjectsStillExist, psycopg.errors.UndefinedObject):
                self._admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))
        self._admin.close()

    def _template(self, stock: str) -> str:
        name = f"{self._prefix}_{stock}_template"
        if name not in self._made:
            parent, add = STOCKS[stock] if stock else ("", _migrate)
            self._create(name, self._template(parent) if stock else "template1")
            self._select(name)
            add()
            self._select(self._prefix)  # nobody may be connected to a template that is copied
        return name

    def _select(self, name: str) -> None:
        connections.close_all()
        settings.DATABASES["default"]["NAME"] = connections["default"].settings_dict["NAME"] = self._selected = name

    def _create(self, name: str, template: str) -> None:
        words = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
        self._admin.execute(words.format(sql.Identifier(name), sql.Identifier(template)))
        self._made.append(name)

    def _drop(self, name: str) -> None:
        self._admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
        self._made.remove(name)


def _migrate() -> None:
    call_command("migrate", verbosity=0, interactive=False)


@contextmanager
def as_role(role: str) -> Iterator[None]:
    """Inside, this thread's connection has the rights of a role of the platform's processes."""
    connection.ensure_connection()
    server = connection.connection  # past Django's cursors: tests count what goes through those
    server.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
    try:
        yield
    finally:
        if connection.connection is server and server.info.transaction_status != TransactionStatus.INERROR:
            server.execute("RESET ROLE")
