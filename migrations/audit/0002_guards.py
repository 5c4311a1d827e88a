"""The log is only added to, by PostgreSQL's own triggers; and whatever adds an entry also queues it for its index."""

from django.db import migrations

from migrations.append_only import append_only

FORWARD = """
CREATE FUNCTION audit_entry_waits() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit_auditpending (entry_id) VALUES (NEW.id);
    RETURN NULL;
END $$;
CREATE TRIGGER audit_entry_waits AFTER INSERT ON audit_auditentry
    FOR EACH ROW EXECUTE FUNCTION audit_entry_waits();
"""
BACKWARD = """
DROP TRIGGER audit_entry_waits ON audit_auditentry;
DROP FUNCTION audit_entry_waits;
"""


class Migration(migrations.Migration):
    dependencies = [("audit", "0001_initial")]

    operations = [
        migrations.RunSQL(FORWARD, BACKWARD),
        *append_only(
            "audit_auditentry", "audit_auditleaf", "audit_logkey", "audit_logcheckpoint", "audit_logcosignature"
        ),
    ]
