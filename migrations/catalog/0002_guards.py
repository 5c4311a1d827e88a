"""A suite's version never changes: runs, records and cards name it."""

from typing import ClassVar

from django.db import migrations

from migrations.append_only import append_only


class Migration(migrations.Migration):
    dependencies: ClassVar = [("catalog", "0001_initial")]
    operations: ClassVar = append_only("catalog_evalsuiteversion")
