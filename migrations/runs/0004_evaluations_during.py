"""Evaluations while training: the step of each result and item, and the reward that judges held-out problems."""

import django.db.models.deletion
from django.db import migrations, models

_TRAINED = """
UPDATE {table} AS measured SET step = trained.step
FROM (
    SELECT attempt.id, coalesce(max(metric.step), attempt.resumed_step, 0) AS step
    FROM runs_attempt AS attempt LEFT JOIN runs_stepmetric AS metric ON metric.attempt_id = attempt.id
    GROUP BY attempt.id
) AS trained
WHERE measured.phase = 'after' AND measured.attempt_id = trained.id AND trained.step > 0
"""


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0001_initial"),
        ("runs", "0003_run_values"),
    ]

    operations = [
        migrations.AddField(
            model_name="evalresult",
            name="step",
            field=models.PositiveIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="evalitem",
            name="step",
            field=models.PositiveIntegerField(default=0),
        ),
        migrations.RemoveConstraint(
            model_name="evalitem",
            name="eval_item_once",
        ),
        migrations.AddConstraint(
            model_name="evalitem",
            constraint=models.UniqueConstraint(
                fields=("attempt", "phase", "step", "suite", "problem_id"), name="eval_item_once"
            ),
        ),
        migrations.AddField(
            model_name="run",
            name="eval_verifier_version",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="runs_judged",
                to="catalog.verifierversion",
            ),
        ),
        migrations.RunSQL(
            [_TRAINED.format(table="runs_evalresult"), _TRAINED.format(table="runs_evalitem")],
            migrations.RunSQL.noop,
        ),
    ]
