"""A run may end more than once. Until now every run had one attempt, so that is the one its record is of."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("governance", "0001_initial"),
        ("runs", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="record",
            name="fence",
            field=models.PositiveIntegerField(default=1),
            preserve_default=False,
        ),
        migrations.AlterField(
            model_name="record",
            name="run",
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="records", to="runs.run"),
        ),
        migrations.AddConstraint(
            model_name="record",
            constraint=models.UniqueConstraint(fields=("run", "fence"), name="one_record_per_end"),
        ),
    ]
