"""Datasets that a run reads besides the one that it trains on."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0009_kinds"),
        ("runs", "0013_kinds"),
    ]

    operations = [
        migrations.CreateModel(
            name="RunDataset",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "role",
                    models.CharField(
                        choices=[
                            ("more", "Further conversations"),
                            ("heldout", "Held out"),
                            ("replay", "Earlier preferences"),
                        ],
                        max_length=8,
                    ),
                ),
                ("position", models.PositiveSmallIntegerField()),
                (
                    "dataset",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="run_datasets",
                        to="catalog.promptdataset",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="run_datasets", to="runs.run"
                    ),
                ),
            ],
            options={
                "ordering": ["run", "position"],
                "constraints": [models.UniqueConstraint(fields=("run", "position"), name="run_dataset_once")],
            },
        ),
    ]
