"""Best of n by a reward, and the reward that is the ground truth."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0008_base_model_compute"),
        ("lab", "0005_alter_labjob_kind"),
    ]

    operations = [
        migrations.AddField(
            model_name="labjob",
            name="ground_truth",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="truth_of_jobs",
                to="catalog.verifierversion",
            ),
        ),
        migrations.AlterField(
            model_name="labjob",
            name="kind",
            field=models.CharField(
                choices=[
                    ("probe", "probe"),
                    ("try", "given answers"),
                    ("sample", "answers of a base model"),
                    ("estimate", "time and memory of a run"),
                    ("preview", "exact tokens of a run"),
                    ("doctor", "look at a base model"),
                    ("evaluate", "evaluation of a base model"),
                    ("chat", "chat with a base model"),
                    ("rescore", "re-score of a run"),
                    ("best_of_n", "best of n by a reward"),
                ],
                max_length=16,
            ),
        ),
    ]
