"""Cards of pipelines, which are only added."""

from typing import ClassVar

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from migrations.append_only import append_only


class Migration(migrations.Migration):
    dependencies: ClassVar = [
        ("accounts", "0001_initial"),
        ("records", "0006_record_seal_index"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]
    operations: ClassVar = [
        migrations.CreateModel(
            name="PipelineCard",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("title", models.CharField(max_length=200)),
                ("seal", models.CharField(db_index=True, max_length=64)),
                ("changes", models.JSONField()),
                ("artifact", models.CharField(max_length=200)),
                ("sha256", models.CharField(max_length=64)),
                ("size", models.BigIntegerField()),
                ("log_index", models.BigIntegerField()),
                ("at", models.DateTimeField(auto_now_add=True)),
                (
                    "by",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="pipeline_cards",
                        to="accounts.project",
                    ),
                ),
            ],
            options={"ordering": ["project", "-pk"]},
        ),
        migrations.CreateModel(
            name="PipelineCardStage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("position", models.PositiveSmallIntegerField()),
                ("name", models.CharField(max_length=60)),
                (
                    "card",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="in_pipelines", to="records.card"
                    ),
                ),
                (
                    "pipeline_card",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="stages",
                        to="records.pipelinecard",
                    ),
                ),
            ],
            options={
                "ordering": ["pipeline_card", "position"],
                "constraints": [
                    models.UniqueConstraint(fields=("pipeline_card", "position"), name="pipeline_card_stage_once"),
                ],
            },
        ),
        *append_only("records_pipelinecard", "records_pipelinecardstage"),
    ]
