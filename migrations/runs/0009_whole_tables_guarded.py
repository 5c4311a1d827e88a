"""Guards of whole tables, which those of single rows (0003) leave open: events are not emptied, and the pairs of states
change by a migration alone.

A migration that changes the pairs first says ALTER TABLE runs_transition DISABLE TRIGGER runs_guard_pairs, and ENABLE
after it. None of this holds against who owns the tables: that role can disable every trigger.
"""

import django.db.models.deletion
from django.db import migrations, models

FORWARD = """
CREATE FUNCTION runs_guard_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'events are only added: the table is not emptied'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'events_are_only_added';
END $$;
CREATE TRIGGER runs_guard_events BEFORE TRUNCATE ON runs_runevent
    FOR EACH STATEMENT EXECUTE FUNCTION runs_guard_events();

CREATE FUNCTION runs_guard_pairs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'which state may follow which changes by a migration alone'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'pairs_are_fixed';
END $$;
CREATE TRIGGER runs_guard_pairs BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON runs_transition
    FOR EACH STATEMENT EXECUTE FUNCTION runs_guard_pairs();
"""

BACKWARD = """
DROP TRIGGER runs_guard_pairs ON runs_transition;
DROP FUNCTION runs_guard_pairs;
DROP TRIGGER runs_guard_events ON runs_runevent;
DROP FUNCTION runs_guard_events;
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0008_checkpoint_indexes")]

    operations = [
        migrations.RunSQL(FORWARD, BACKWARD),
        # Of the models alone: what has events cannot be deleted, as the database has it already.
        migrations.AlterField(
            model_name="runevent",
            name="run",
            field=models.ForeignKey(
                db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name="events", to="runs.run"
            ),
        ),
        migrations.AlterField(
            model_name="runevent",
            name="attempt",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="events",
                to="runs.attempt",
            ),
        ),
    ]
