"""A run counts its ends, because one may come without a new attempt: when it is retried and cancelled before its next
claim."""

from django.db import migrations, models

BACKFILL = """
UPDATE runs_run SET ends = GREATEST(
    (SELECT count(*) FROM runs_runevent e
      WHERE e.run_id = runs_run.id AND e.kind = 'state'
        AND e.data->>'to' IN ('sealing', 'failed', 'cancelled') AND e.data->>'from' <> 'sealing'),
    CASE WHEN state IN ('sealing', 'succeeded', 'failed', 'cancelled') THEN 1 ELSE 0 END
);
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0004_indexes")]

    operations = [
        migrations.AddField(
            model_name="run",
            name="ends",
            field=models.PositiveIntegerField(default=0),
        ),
        migrations.RunSQL(BACKFILL, migrations.RunSQL.noop),
    ]
