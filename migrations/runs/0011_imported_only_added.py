"""Imported results are only added: what somebody stated of another tool's run stays as it was stated."""

from typing import ClassVar

from django.db import migrations

from migrations.append_only import append_only


class Migration(migrations.Migration):
    dependencies: ClassVar = [("runs", "0010_suites")]
    operations: ClassVar = append_only("runs_importedresult")
