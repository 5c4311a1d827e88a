"""Probes and estimates are only added: a launch names those that it rested on."""

from typing import ClassVar

from django.db import migrations

from migrations.append_only import append_only


class Migration(migrations.Migration):
    dependencies: ClassVar = [("lab", "0001_initial")]
    operations: ClassVar = append_only("lab_verifierprobe", "lab_launchprobe", "lab_launchestimate")
