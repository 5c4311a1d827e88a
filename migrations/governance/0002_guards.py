"""Records, cards, statements and entries are only added."""

from typing import ClassVar

from django.db import migrations

from migrations.append_only import append_only


class Migration(migrations.Migration):
    dependencies: ClassVar = [("governance", "0001_initial")]
    operations: ClassVar = append_only("governance_record", "governance_card", "governance_statement", "governance_recordentry")
