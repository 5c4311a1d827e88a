"""Records, cards, statements and entries are only added."""

from typing import ClassVar

from django.db import migrations

from migrations.append_only import append_only


class Migration(migrations.Migration):
    dependencies: ClassVar = [("records", "0001_initial")]
    operations: ClassVar = append_only("records_record", "records_card", "records_statement", "records_recordentry")
