"""What the people of a run expect, before it begins."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("runs", "0011_imported_runs")]
    operations: ClassVar = [
        migrations.AddField("run", "hypotheses", models.TextField(blank=True, default="")),
    ]
