"""Kinds of run other than GRPO; those that only learn from given rows have no reward."""

from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0005_api_tokens"),
        ("catalog", "0009_kinds"),
        ("runs", "0012_run_hypotheses"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name="run",
            name="run_trained_of_rows",
        ),
        migrations.AddField(
            model_name="run",
            name="kind",
            field=models.CharField(
                choices=[
                    ("grpo", "GRPO"),
                    ("sft", "Fine-tuning"),
                    ("reward_model", "Reward model"),
                    ("sample", "Sampling"),
                    ("distill", "Distillation"),
                ],
                default="grpo",
                max_length=12,
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("origin", "imported"),
                    models.Q(
                        ("base_model__isnull", False), ("dataset__isnull", False), ("verifier_version__isnull", False)
                    ),
                    models.Q(
                        ("base_model__isnull", False),
                        ("dataset__isnull", False),
                        ("kind__in", ("sft", "reward_model", "distill")),
                    ),
                    _connector="OR",
                ),
                name="run_trained_of_rows",
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(("kind__in", ["grpo", "sft", "reward_model", "sample", "distill"])),
                name="run_kind_known",
            ),
        ),
    ]
