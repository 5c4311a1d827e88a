import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from migrations.append_only import append_only

KINDS = [
    ("probe", "probe"),
    ("try", "given answers"),
    ("sample", "answers of a base model"),
    ("estimate", "time and memory of a run"),
]


class Migration(migrations.Migration):
    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("lab", "0002_only_added"),
        ("runs", "0014_needs_packages"),
    ]

    operations = [
        migrations.AlterField("labjob", "kind", models.CharField(choices=KINDS, max_length=8)),
        migrations.AddField("labjob", "config", models.JSONField(null=True)),
        migrations.AddField("labjob", "config_digest", models.CharField(blank=True, default="", max_length=64)),
        migrations.AddField("labjob", "inputs", models.JSONField(default=list)),
        migrations.AddField("labjob", "needs", models.JSONField(default=dict)),
        migrations.AddIndex("labjob", models.Index(fields=["project", "config_digest"], name="lab_job_config")),
        migrations.CreateModel(
            name="LaunchEstimate",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("estimate", models.JSONField()),
                ("at", models.DateTimeField(auto_now_add=True)),
                (
                    "by",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="launches", to="lab.labjob"
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="launch_estimates", to="runs.run"
                    ),
                ),
            ],
            options={"ordering": ["-id"]},
        ),
        *append_only("lab_launchestimate"),
    ]
