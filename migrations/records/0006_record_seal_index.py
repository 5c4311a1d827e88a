"""An index on the seal, by which anyone asks for a record's status."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("records", "0005_policies")]

    operations: ClassVar = [
        migrations.AlterField(model_name="record", name="seal", field=models.CharField(db_index=True, max_length=64)),
    ]
