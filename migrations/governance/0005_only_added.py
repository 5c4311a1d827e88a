"""What cards keep is no longer told of the record too, and records, cards, statements and entries are only added to:
PostgreSQL refuses to change or delete one. Apart from 0004, whose new rows must be committed before their tables change."""

import django.db.models.deletion
from django.db import migrations, models

from migrations.append_only import append_only


class Migration(migrations.Migration):
    dependencies = [("governance", "0004_cards_statements_entries")]

    operations = [
        migrations.RenameField(model_name="record", old_name="digest", new_name="record_root"),
        migrations.RemoveField(model_name="record", name="card_artifact"),
        migrations.RemoveField(model_name="record", name="card_sha256"),
        migrations.RemoveField(model_name="record", name="card_size"),
        migrations.AddField(
            model_name="record", name="run_root", field=models.CharField(blank=True, default="", max_length=64),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="record",
            name="supersedes",
            field=models.OneToOneField(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="superseded_by",
                to="governance.record",
            ),
        ),
        migrations.AddField(model_name="record", name="version", field=models.PositiveIntegerField(default=1)),
        migrations.AddConstraint(
            model_name="record",
            constraint=models.UniqueConstraint(fields=("run", "end", "version"), name="one_record_per_version"),
        ),
        *append_only("governance_record", "governance_card", "governance_statement", "governance_recordentry"),
    ]
