"""Tables that are only added to: PostgreSQL itself refuses UPDATE, DELETE and TRUNCATE, whoever asks.

None of this holds against who owns the tables: that role can disable every trigger. The platform's processes need not
be it (cohort/base/database_roles.py); what holds against it is the audit log's tree (docs/audit.md).
"""

from django.db import migrations

_FUNCTION = """
CREATE OR REPLACE FUNCTION cohort_only_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is only added to: % is refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'check_violation', CONSTRAINT = 'only_added';
END $$;
"""
_GUARDS = """
CREATE TRIGGER {table}_only_added BEFORE UPDATE OR DELETE ON {table}
    FOR EACH ROW EXECUTE FUNCTION cohort_only_added();
CREATE TRIGGER {table}_not_emptied BEFORE TRUNCATE ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION cohort_only_added();
"""
_UNGUARDED = """
DROP TRIGGER {table}_not_emptied ON {table};
DROP TRIGGER {table}_only_added ON {table};
"""


def append_only(*tables: str) -> list[migrations.RunSQL]:
    """Operations that guard `tables`. The function they share stays when one of them is undone."""
    return [
        migrations.RunSQL(_FUNCTION, migrations.RunSQL.noop),
        *(migrations.RunSQL(_GUARDS.format(table=table), _UNGUARDED.format(table=table)) for table in tables),
    ]
