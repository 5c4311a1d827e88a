"""What PostgreSQL lets the roles of the platform's processes do. That they may do all they need is shown by the other
tests here: pages are answered as `cohort_web`, calls of workers as `cohort_ingest` (conftest.py, worker_calls.py)."""

import psycopg
import pytest
from django.apps import apps
from django.db import ProgrammingError, connection, transaction

from cohort.base.database_roles import INGEST, WEB, grant_roles
from tests.database import as_role

pytestmark = pytest.mark.django_db

ONLY_ADDED = {
    *("audit_auditentry", "audit_auditleaf", "audit_logkey", "audit_logcheckpoint", "audit_logcosignature"),
    *("catalog_evalsuiteversion", "lab_verifierprobe", "lab_launchprobe", "lab_launchestimate"),
    *("lab_modelevalresult", "lab_modelevalitem", "review_answerjudgement", "review_rescoredsample"),
    *("records_record", "records_card", "records_statement", "records_recordentry", "records_standinganswer"),
    *("review_annotation", "review_reviewitem", "review_pairvote", "runs_runevent", "runs_importedresult"),
    *("records_policyversion", "records_recordstatus", "review_runimport", "pipelines_stagerun"),
    *("records_pipelinecard", "records_pipelinecardstage"),
}
PAIRS = "runs_transition"
TABLES = {model._meta.db_table: model for model in apps.get_models(include_auto_created=True)}


def refused(role: str, statement: str) -> None:
    with pytest.raises(ProgrammingError) as caught, transaction.atomic(), as_role(role), connection.cursor() as cursor:
        cursor.execute(statement)
    assert isinstance(caught.value.__cause__, psycopg.errors.InsufficientPrivilege)


@pytest.mark.parametrize("role", [WEB, INGEST])
@pytest.mark.parametrize("table", sorted({*ONLY_ADDED, PAIRS}))
def test_what_is_only_added_to_is_not_changed_deleted_or_emptied(role: str, table: str) -> None:
    """By a right that the role lacks, before any trigger could be disabled."""
    column = TABLES[table]._meta.pk.column if table in TABLES else "to_state"  # type: ignore[union-attr]
    for statement in (f"UPDATE {table} SET {column} = {column}", f"DELETE FROM {table}", f"TRUNCATE {table}"):
        refused(role, statement)
    refused(role, f"ALTER TABLE {table} DISABLE TRIGGER USER")
    refused(role, f"SELECT FROM {table} FOR SHARE" if table == PAIRS else f"DROP TABLE {table}")


def test_every_table_that_refuses_changes_is_one_of_these() -> None:
    """So a further one gets no right too many, and this test its row."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_class WHERE oid IN (SELECT tgrelid FROM pg_trigger WHERE tgtype & 32 > 0)"
        )
        assert {name for (name,) in cursor.fetchall()} == {*ONLY_ADDED, PAIRS}


def rights(role: str) -> dict[str, set[str]]:
    """Of each table, what the role may do with all of its columns."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name, privilege_type FROM information_schema.table_privileges WHERE grantee = %s", [role]
        )
        held: dict[str, set[str]] = {}
        for table, right in cursor.fetchall():
            held.setdefault(table, set()).add(right)
    return held


def test_the_web_role_keeps_every_model_s_table_and_defines_nothing() -> None:
    held = rights(WEB)
    added, kept = {"SELECT", "INSERT"}, {"SELECT", "INSERT", "UPDATE", "DELETE"}
    assert {table: held.pop(table) for table in TABLES} == {
        table: added if table in ONLY_ADDED else kept for table in TABLES
    }
    assert held == {PAIRS: {"SELECT"}, "django_migrations": {"SELECT"}}
    refused(WEB, "CREATE TABLE more ()")


def test_the_ingest_role_sees_no_password_session_statement_or_record() -> None:
    held = rights(INGEST)
    hidden = {"accounts_user", "accounts_membership", "django_session", "records_record", "records_statement"}
    assert not hidden & set(held)
    for table in hidden:
        refused(INGEST, f"SELECT * FROM {table}")
    refused(INGEST, "SELECT password FROM accounts_user")
    writing = {table for table, words in held.items() if words - {"SELECT"}}
    assert {table.partition("_")[0] for table in writing} == {
        *("alerts", "audit", "catalog", "lab", "nodes", "review", "runs")
    }
    assert {table for table in writing if table.startswith("catalog_")} == {"catalog_promptdataset"}  # sampled ones
    assert held["catalog_promptdataset"] == {"SELECT", "INSERT"}
    assert [table for table, words in held.items() if "DELETE" in words] == ["runs_checkpointfile", "runs_runvalue"]


def test_a_right_too_many_is_taken_by_the_next_migration() -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"GRANT ALL ON records_record, accounts_user TO {INGEST}")
    assert "UPDATE" in rights(INGEST)["records_record"]
    grant_roles(using="default")
    assert not {"records_record", "accounts_user"} & set(rights(INGEST))
