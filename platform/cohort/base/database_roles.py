"""What the database roles of the platform's processes may do, granted after every migration.

The migrations run as the owner of the tables. The web server and the platform's workers connect as `cohort_web`; a web
server that serves workers alone (COHORT_SERVES=workers) connects as `cohort_ingest`. Neither may define anything, and
for neither PostgreSQL takes an UPDATE, DELETE or TRUNCATE on a table that is only added to. Which tables those are is
read from their guards (migrations/append_only.py).
"""

from typing import Any

from django.apps import apps
from django.db import connections, transaction
from psycopg import sql

WEB, INGEST = "cohort_web", "cohort_ingest"

_READ = "SELECT"
_ADD = "SELECT, INSERT"
_CHANGE = "SELECT, UPDATE"
_KEEP = "SELECT, INSERT, UPDATE"
_ALL = "SELECT, INSERT, UPDATE, DELETE"
_INGEST = {
    **dict.fromkeys(("accounts.project", "catalog.basemodel", "catalog.evalsuite", "catalog.evalsuiteversion"), _READ),
    **dict.fromkeys(("catalog.verifier", "catalog.verifierversion", "runs.rundataset", "runs.runsuite"), _READ),
    "catalog.promptdataset": _ADD,
    **dict.fromkeys(("lab.chatmessage", "lab.conversation"), _READ),
    **dict.fromkeys(("lab.chatanswer", "lab.modelevalitem", "lab.modelevalresult"), _ADD),
    **dict.fromkeys(("audit.auditentry", "audit.auditpending", "lab.verifierprobe", "runs.runevent"), _ADD),
    **dict.fromkeys(("review.group", "review.rescoredsample", "review.sample", "review.stepcommitments"), _ADD),
    **dict.fromkeys(("runs.evalresult", "runs.evalitem", "runs.stepmetric"), _ADD),
    **dict.fromkeys(("lab.labjob", "nodes.node", "review.rescore", "runs.run"), _CHANGE),
    **dict.fromkeys(("review.datasetfile", "review.tokenfile"), _KEEP),
    **dict.fromkeys(("runs.attempt", "runs.bucket", "runs.checkpoint", "runs.logchunk", "runs.servicebeat"), _KEEP),
    **dict.fromkeys(("runs.checkpointfile", "runs.runvalue"), _ALL),
    "alerts.alertpending": "INSERT",
    "accounts.user": "SELECT (id, username)",
}
"""By model, what calls of workers do with its table; on all others, nothing."""


def grant_roles(*, using: str, **_: Any) -> None:
    """Receiver of post_migrate: give each role that exists on the server what it needs, and take all else from it."""
    connection = connections[using]
    with transaction.atomic(using), connection.cursor() as cursor:
        cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
        tables = [name for (name,) in cursor.fetchall()]
        # Whatever guards a table against being emptied guards it against every change of a row too.
        cursor.execute(
            "SELECT DISTINCT tgrelid::regclass::text FROM pg_trigger WHERE NOT tgisinternal AND tgtype & 32 > 0"
        )
        only_added = {name for (name,) in cursor.fetchall()}
        models = {model._meta.db_table: model._meta.label_lower for model in apps.get_models(include_auto_created=True)}
        cursor.execute("SELECT rolname FROM pg_roles WHERE rolname IN (%s, %s)", [WEB, INGEST])
        for (role,) in cursor.fetchall():
            cursor.execute(sql.SQL("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {}").format(sql.Identifier(role)))
            for table in tables:
                rights = _rights(role, models.get(table), table in only_added)
                names = {"table": sql.Identifier(table), "role": sql.Identifier(role)}
                cursor.execute(sql.SQL("REVOKE ALL ON {table} FROM {role}").format(**names))
                if rights:
                    cursor.execute(sql.SQL(f"GRANT {rights} ON {{table}} TO {{role}}").format(**names))


def _rights(role: str, model: str | None, only_added: bool) -> str:
    if model is None:  # of no model: which migrations were applied, which states follow which
        return _READ
    if role == INGEST:
        return _INGEST.get(model, "")
    return _ADD if only_added else _ALL
