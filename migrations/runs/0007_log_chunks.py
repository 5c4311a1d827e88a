import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0006_launch_drafts_and_sweeps"),
    ]

    operations = [
        migrations.CreateModel(
            name="LogChunk",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("offset", models.PositiveBigIntegerField()),
                ("data", models.BinaryField()),
                (
                    "attempt",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="log_chunks",
                        to="runs.attempt",
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("attempt", "offset"), name="log_chunk_once")],
            },
        ),
    ]
