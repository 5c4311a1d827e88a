"""Which events of runs the rules are applied to: the database notes them with the event itself, whoever writes it, so
that none is lost. And the rules that every project has from its beginning, for projects that were there before.
"""

from typing import Any

from django.db import migrations
from django.db.models.functions import Now

NOTED = """
    NEW.kind IN ('diagnosis', 'seal_failed', 'sealed')
    OR NEW.kind = 'state' AND (
        NEW.data ->> 'to' IN ('failed', 'cancelled')
        OR NEW.data ->> 'to' = 'queued' AND NEW.data ->> 'from' IN ('succeeded', 'failed', 'cancelled')
    )
"""

FORWARD = f"""
CREATE FUNCTION alerts_note_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO alerts_alertpending (event_id) VALUES (NEW.id);
    RETURN NULL;
END $$;
CREATE TRIGGER alerts_note_event AFTER INSERT ON runs_runevent
    FOR EACH ROW WHEN ({NOTED}) EXECUTE FUNCTION alerts_note_event();
"""

BACKWARD = """
DROP TRIGGER alerts_note_event ON runs_runevent;
DROP FUNCTION alerts_note_event;
"""

DEFAULTS = {
    "diagnosis": "The trainer reports a fault",
    "ended": "Run failed",
    "unsealed": "Record not sealed",
}


def add_defaults(apps: Any, _: Any) -> None:
    rule = apps.get_model("alerts", "AlertRule")
    rule.objects.bulk_create(
        rule(project=project, name=name, condition=condition, since=Now())
        for project in apps.get_model("accounts", "Project").objects.order_by("pk")
        for condition, name in DEFAULTS.items()
    )


class Migration(migrations.Migration):
    dependencies = [("alerts", "0001_initial")]

    operations = [
        migrations.RunSQL(FORWARD, BACKWARD),
        migrations.RunPython(add_defaults, migrations.RunPython.noop),
    ]
