"""What people say of samples, beside the verifier."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from migrations.append_only import append_only


class Migration(migrations.Migration):
    dependencies = [
        ("review", "0004_commitments"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Annotation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "verdict",
                    models.CharField(
                        choices=[("right", "Right"), ("wrong", "Wrong"), ("unsure", "Unsure")], max_length=6
                    ),
                ),
                ("note", models.CharField(blank=True, max_length=2000)),
                ("at", models.DateTimeField(auto_now_add=True)),
                (
                    "by",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
                (
                    "sample",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="annotations", to="review.sample"
                    ),
                ),
            ],
            options={"ordering": ["sample", "-pk"]},
        ),
        *append_only("review_annotation"),
    ]
