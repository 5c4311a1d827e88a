"""Versions of a project's policy, which are only added."""

from typing import ClassVar

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from migrations.append_only import append_only


class Migration(migrations.Migration):
    dependencies: ClassVar = [
        ("accounts", "0001_initial"),
        ("records", "0004_statement_drafts"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]
    operations: ClassVar = [
        migrations.CreateModel(
            name="PolicyVersion",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveIntegerField()),
                ("text", models.TextField(blank=True)),
                ("digest", models.CharField(blank=True, max_length=64)),
                ("demanded", models.BooleanField(default=False)),
                ("reason", models.TextField()),
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
                        related_name="policy_versions",
                        to="accounts.project",
                    ),
                ),
            ],
            options={
                "ordering": ["project", "-number"],
                "constraints": [
                    models.UniqueConstraint(fields=("project", "number"), name="policy_version_once"),
                ],
            },
        ),
        *append_only("records_policyversion"),
    ]
