"""Rows by which the list of runs is searched and sorted, filled from the configs and evaluations that are stored; tags, a
note and the archive; saved views."""

import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

# As cohort.runs.run_values had them when this migration was written.
CONFIGS = """
    WITH RECURSIVE leaf (run_id, project_id, key, value) AS (
        SELECT run.id, run.project_id, part.key, part.value FROM runs_run AS run, jsonb_each(run.config) AS part
        UNION ALL
        SELECT leaf.run_id, leaf.project_id, leaf.key || '.' || part.key, part.value
        FROM leaf, LATERAL (
            SELECT key, value FROM jsonb_each(CASE jsonb_typeof(leaf.value) WHEN 'object' THEN leaf.value END)
            UNION ALL
            SELECT (place - 1)::text, item
            FROM jsonb_array_elements(CASE jsonb_typeof(leaf.value) WHEN 'array' THEN leaf.value END)
                WITH ORDINALITY AS items (item, place)
        ) AS part
    )
    INSERT INTO runs_runvalue (run_id, project_id, key, number, text)
    SELECT run_id, project_id, key,
           CASE WHEN jsonb_typeof(value) = 'number' THEN
               CASE WHEN value::numeric = 0 OR abs(value::numeric) BETWEEN 1e-300 AND 1e300 THEN value::float8 END
           END,
           CASE WHEN jsonb_typeof(value) = 'number' THEN '' ELSE value #>> '{}' END
    FROM leaf
    WHERE jsonb_typeof(value) IN ('number', 'string', 'boolean') AND length(key) <= 400
    UNION ALL
    SELECT id, project_id, 'variant', NULL, concat_ws(
        '/', coalesce(config #>> '{algorithm,advantage}', 'group'), config #>> '{algorithm,scale}',
        config #>> '{algorithm,std_ddof}'
    )
    FROM runs_run
"""
EVALUATIONS = """
    WITH score AS (
        SELECT DISTINCT ON (result.run_id, result.suite, result.phase)
            result.run_id, run.project_id, result.suite, result.phase, result.correct / result.problems AS share
        FROM runs_evalresult AS result
        JOIN runs_attempt AS attempt ON attempt.id = result.attempt_id
        JOIN runs_run AS run ON run.id = result.run_id
        WHERE result.problems > 0
            AND (attempt.valid_through IS NULL OR (result.phase = 'before' AND attempt.valid_through >= 0))
        ORDER BY result.run_id, result.suite, result.phase, result.attempt_id DESC, result.seq DESC
    )
    INSERT INTO runs_runvalue (run_id, project_id, key, number, text)
    SELECT run_id, project_id, concat_ws('.', 'evaluation', phase, suite), share, '' FROM score
    UNION ALL
    (SELECT DISTINCT ON (run_id, suite) run_id, project_id, 'evaluation.newest.' || suite, share, ''
     FROM score ORDER BY run_id, suite, phase)
"""


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0003_people_and_quotas"),
        ("catalog", "0004_adapter_folders"),
        ("runs", "0002_guards"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="RunValue",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", models.TextField(db_collation="C")),
                ("number", models.FloatField(null=True)),
                ("text", models.TextField(blank=True)),
            ],
        ),
        migrations.CreateModel(
            name="SavedView",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=60)),
                ("query", models.CharField(max_length=4000)),
                ("shared", models.BooleanField(default=False)),
                ("default", models.BooleanField(default=False)),
            ],
            options={
                "ordering": ["name", "id"],
            },
        ),
        migrations.AddField(
            model_name="run",
            name="archived_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="run",
            name="note",
            field=models.TextField(blank=True, default=""),
        ),
        migrations.AddField(
            model_name="run",
            name="tags",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(max_length=40), blank=True, default=list, size=None
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=django.contrib.postgres.indexes.GinIndex(fields=["tags"], name="run_by_tag"),
        ),
        migrations.AddField(
            model_name="runvalue",
            name="project",
            field=models.ForeignKey(
                db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="accounts.project"
            ),
        ),
        migrations.AddField(
            model_name="runvalue",
            name="run",
            field=models.ForeignKey(
                db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name="values", to="runs.run"
            ),
        ),
        migrations.AddField(
            model_name="savedview",
            name="owner",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="+", to=settings.AUTH_USER_MODEL
            ),
        ),
        migrations.AddField(
            model_name="savedview",
            name="project",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="saved_views", to="accounts.project"
            ),
        ),
        migrations.AddIndex(
            model_name="runvalue",
            index=models.Index(fields=["project", "key", "number"], include=("run",), name="run_value_by_number"),
        ),
        migrations.AddConstraint(
            model_name="runvalue",
            constraint=models.UniqueConstraint(fields=("run", "key"), name="run_value_once"),
        ),
        migrations.AddConstraint(
            model_name="savedview",
            constraint=models.UniqueConstraint(fields=("project", "owner", "name"), name="saved_view_name_once"),
        ),
        migrations.AddConstraint(
            model_name="savedview",
            constraint=models.UniqueConstraint(
                condition=models.Q(("default", True)), fields=("project", "owner"), name="saved_view_one_default"
            ),
        ),
        migrations.RunSQL(CONFIGS, migrations.RunSQL.noop),
        migrations.RunSQL(EVALUATIONS, migrations.RunSQL.noop),
    ]
