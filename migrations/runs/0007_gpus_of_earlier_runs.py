"""Runs that were made before `gpus` was there need as many as their configs say, as `services.gpus_needed` has it: those
of `cuda`, and of `auto` only when they have several processes, because `auto` alone may fall back to the CPU. Configs of
that time may have no `devices`; they are of one."""

from django.db import migrations

BACKFILL = """
UPDATE runs_run SET gpus = COALESCE((config #>> '{engine,devices}')::int, 1)
WHERE gpus = 0 AND (
    config #>> '{engine,device}' = 'cuda'
    OR (config #>> '{engine,device}' = 'auto' AND (config #>> '{engine,devices}')::int > 1)
);
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0006_claim_id")]

    operations = [migrations.RunSQL(BACKFILL, migrations.RunSQL.noop)]
