"""Pipelines, their stages, and each run that a stage was given."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from migrations.append_only import append_only


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("accounts", "0005_api_tokens"),
        ("runs", "0014_run_datasets"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Pipeline",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=120)),
                ("config", models.JSONField()),
                ("digest", models.CharField(max_length=64)),
                ("active", models.BooleanField(default=False)),
                ("override", models.TextField(blank=True, default="")),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="pipelines",
                        to="accounts.project",
                    ),
                ),
                (
                    "started_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
            },
        ),
        migrations.CreateModel(
            name="PipelineStage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("slug", models.CharField(max_length=40)),
                ("position", models.PositiveSmallIntegerField()),
                ("kind", models.CharField(max_length=12)),
                ("fields", models.JSONField()),
                ("refusal", models.TextField(blank=True, default="")),
                (
                    "pipeline",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="stages",
                        to="pipelines.pipeline",
                    ),
                ),
            ],
            options={
                "ordering": ["pipeline", "position"],
            },
        ),
        migrations.CreateModel(
            name="StageRun",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("digest", models.CharField(max_length=64)),
                ("given", models.JSONField()),
                ("made_at", models.DateTimeField(auto_now_add=True)),
                (
                    "run",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT, related_name="stage_run", to="runs.run"
                    ),
                ),
                (
                    "stage",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="runs", to="pipelines.pipelinestage"
                    ),
                ),
            ],
            options={
                "ordering": ["id"],
            },
        ),
        migrations.AddField(
            model_name="pipelinestage",
            name="current",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="+", to="pipelines.stagerun"
            ),
        ),
        migrations.AddConstraint(
            model_name="pipeline",
            constraint=models.UniqueConstraint(fields=("project", "name"), name="pipeline_name_once"),
        ),
        migrations.AddConstraint(
            model_name="pipelinestage",
            constraint=models.UniqueConstraint(fields=("pipeline", "slug"), name="stage_once"),
        ),
        *append_only("pipelines_stagerun"),
    ]
