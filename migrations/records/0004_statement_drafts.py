import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from migrations.append_only import append_only


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0005_api_tokens"),
        ("records", "0003_record_status"),
        ("runs", "0011_imported_runs"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="StandingAnswer",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("field", models.CharField(max_length=80)),
                ("value", models.JSONField(null=True)),
                ("text", models.TextField(blank=True)),
                (
                    "audience",
                    models.CharField(
                        choices=[
                            ("public", "Public"),
                            ("downstream", "Downstream users of the model"),
                            ("authority", "Authorities"),
                            ("internal", "Internal"),
                        ],
                        max_length=10,
                    ),
                ),
                ("reason", models.TextField(blank=True)),
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
                        related_name="standing_answers",
                        to="accounts.project",
                    ),
                ),
            ],
            options={
                "ordering": ["project", "field", "-pk"],
            },
        ),
        migrations.AddField(
            model_name="statement",
            name="standing",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="statements",
                to="records.standinganswer",
            ),
        ),
        migrations.CreateModel(
            name="StatementDraft",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("field", models.CharField(max_length=80)),
                ("text", models.TextField(blank=True)),
                ("chosen", models.JSONField(default=list)),
                ("audience", models.CharField(max_length=80)),
                ("since", models.BigIntegerField(default=0)),
                ("revision", models.PositiveIntegerField(default=0)),
                ("window", models.CharField(blank=True, max_length=16)),
                ("saved_at", models.DateTimeField(auto_now=True)),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="statement_drafts",
                        to="accounts.project",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="statement_drafts",
                        to="runs.run",
                    ),
                ),
                (
                    "standing",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="records.standinganswer",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="statement_drafts",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["project", "run", "field"],
            },
        ),
        migrations.AddIndex(
            model_name="standinganswer",
            index=models.Index(fields=["project", "field", "-id"], name="standing_newest"),
        ),
        migrations.AddConstraint(
            model_name="statementdraft",
            constraint=models.UniqueConstraint(
                fields=("user", "project", "run", "field"), name="statement_draft_once", nulls_distinct=False
            ),
        ),
        *append_only("records_standinganswer"),
    ]
