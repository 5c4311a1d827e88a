"""A record is of one end of its run, whichever attempt came before it. Which end that was the run's events tell."""

from django.db import migrations, models

BACKFILL = """
UPDATE governance_record SET "end" = GREATEST(1, (
    SELECT count(*) FROM runs_runevent e
     WHERE e.run_id = governance_record.run_id AND e.kind = 'state' AND e.at <= governance_record.sealed_at
       AND e.data->>'to' IN ('sealing', 'failed', 'cancelled') AND e.data->>'from' <> 'sealing'
));
"""


class Migration(migrations.Migration):
    dependencies = [
        ("governance", "0002_record_per_end"),
        ("runs", "0005_run_ends"),
    ]

    operations = [
        migrations.AddField(
            model_name="record",
            name="end",
            field=models.PositiveIntegerField(default=1),
            preserve_default=False,
        ),
        migrations.RunSQL(BACKFILL, migrations.RunSQL.noop),
        migrations.RemoveConstraint(model_name="record", name="one_record_per_end"),
        migrations.AddConstraint(
            model_name="record",
            constraint=models.UniqueConstraint(fields=("run", "end"), name="one_record_per_end"),
        ),
    ]
