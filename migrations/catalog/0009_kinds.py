"""What the rows of a dataset are, and the run that sampled it."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0008_base_model_compute"),
        ("runs", "0012_run_hypotheses"),
    ]

    operations = [
        migrations.AddField(
            model_name="promptdataset",
            name="content",
            field=models.CharField(
                choices=[("problems", "Problems"), ("conversations", "Conversations"), ("preferences", "Preferences")],
                default="problems",
                max_length=16,
            ),
        ),
        migrations.AddField(
            model_name="promptdataset",
            name="sampled_by",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="sampled_datasets", to="runs.run"
            ),
        ),
    ]
