"""Annotations are only added."""

from typing import ClassVar

from django.db import migrations

from migrations.append_only import append_only


class Migration(migrations.Migration):
    dependencies: ClassVar = [("review", "0001_initial")]
    operations: ClassVar = append_only("review_annotation")
