"""The file of a dataset that a run sampled, as its parts arrive."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0009_kinds"),
        ("review", "0009_imported_runs"),
        ("runs", "0013_kinds"),
    ]

    operations = [
        migrations.CreateModel(
            name="DatasetFile",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("sha256", models.CharField(max_length=64)),
                ("size", models.BigIntegerField()),
                ("received", models.BigIntegerField(default=0)),
                ("done_at", models.DateTimeField(null=True)),
                ("seq", models.BigIntegerField()),
                ("content", models.CharField(max_length=16)),
                ("rows", models.PositiveIntegerField()),
                ("counts", models.JSONField()),
                ("fault", models.CharField(blank=True, default="", max_length=500)),
                (
                    "attempt",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="dataset_file", to="runs.attempt"
                    ),
                ),
                (
                    "dataset",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="files",
                        to="catalog.promptdataset",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="dataset_files", to="runs.run"
                    ),
                ),
            ],
            options={
                "ordering": ["run", "attempt"],
            },
        ),
    ]
