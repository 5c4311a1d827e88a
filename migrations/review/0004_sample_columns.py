"""Columns of a sample by which a run's samples are filtered, ordered and counted from one index, filled from the groups
and components that are stored."""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

# As cohort.review.facets had them when this migration was written. The flags need a trainer that records them.
COLUMNS = """
    UPDATE review_sample AS sample SET
        run_id = sampled.run_id, attempt_id = sampled.attempt_id, step = sampled.step,
        component_values = coalesce((
            SELECT array_agg((sample.components #>> ARRAY[part.item->>'name', 'value'])::float8 ORDER BY part.place)
            FROM jsonb_array_elements(run.config #> '{reward,components}') WITH ORDINALITY AS part (item, place)
        ), '{}') || CASE WHEN sample.components ? 'overlong'
            THEN ARRAY[(sample.components #>> '{overlong,value}')::float8] ELSE '{}' END,
        facets =
            CASE sample.finish_reason WHEN 'eos' THEN 0 WHEN 'stop' THEN 1 ELSE 2 END
            | (coalesce(
                array_position(ARRAY['reward_error', 'truncated', 'importance'], sample.mask_cause::text), 0
            ) << 2)
            | (coalesce((
                SELECT coalesce(array_position(ARRAY[
                    'verifier', 'timeout', 'memory', 'output', 'value', 'sample', 'parse', 'refused', 'budget', 'infra'
                ], score->>'error_class'), 11)
                FROM jsonb_array_elements(run.config #> '{reward,components}') WITH ORDINALITY AS part (item, place),
                    LATERAL (SELECT sample.components->(part.item->>'name')) AS own (score)
                WHERE score->>'error' IS NOT NULL OR score->>'error_class' IS NOT NULL
                ORDER BY part.place LIMIT 1
            ), 0) << 5)
            | ((CASE WHEN sample.mask_cause = '' THEN coalesce((
                SELECT CASE score->>'passed' WHEN 'true' THEN 1 WHEN 'false' THEN 2 END
                FROM jsonb_array_elements(run.config #> '{reward,components}') WITH ORDINALITY AS part (item, place),
                    LATERAL (SELECT sample.components->(part.item->>'name')) AS own (score)
                WHERE score IS NOT NULL
                ORDER BY part.item->>'name' = run.config #>> '{reward,success}' DESC NULLS LAST,
                    part.item ? 'only' DESC, (part.item->>'weight')::float8 DESC, part.place
                LIMIT 1
            ), 0) ELSE 0 END) << 9)
            | (coalesce(array_position(
                ARRAY['all_right', 'all_wrong', 'all_equal', 'unscored'], sampled.discarded::text
            ), 0) << 11)
    FROM review_group AS sampled JOIN runs_run AS run ON run.id = sampled.run_id
    WHERE sampled.id = sample.group_id
"""


def _of_group(to: str, **more: bool) -> models.ForeignKey:
    return models.ForeignKey(
        db_constraint=False,
        db_index=False,
        on_delete=django.db.models.deletion.CASCADE,
        related_name="samples",
        to=to,
        **more,
    )


class Migration(migrations.Migration):
    dependencies = [
        ("review", "0003_answer_judgements"),
    ]

    operations = [
        migrations.AddField("sample", "run", _of_group("runs.run", null=True)),
        migrations.AddField("sample", "attempt", _of_group("runs.attempt", null=True)),
        migrations.AddField("sample", "step", models.PositiveIntegerField(null=True)),
        migrations.AddField(
            "sample",
            "component_values",
            django.contrib.postgres.fields.ArrayField(base_field=models.FloatField(null=True), default=list, size=None),
        ),
        migrations.AddField("sample", "facets", models.IntegerField(default=0)),
        migrations.AddField("sample", "clipped", models.FloatField(null=True)),
        migrations.RunSQL(COLUMNS, migrations.RunSQL.noop),
        migrations.AlterField("sample", "run", _of_group("runs.run")),
        migrations.AlterField("sample", "attempt", _of_group("runs.attempt")),
        migrations.AlterField("sample", "step", models.PositiveIntegerField()),
        migrations.AddIndex(
            model_name="sample",
            index=models.Index(
                fields=["run", "step"],
                include=(
                    "id",
                    "attempt",
                    "reward",
                    "advantage",
                    "tokens",
                    "facets",
                    "component_values",
                    "clipped",
                ),
                name="sample_by_step",
            ),
        ),
    ]
