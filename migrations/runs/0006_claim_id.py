from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0005_run_ends"),
    ]

    operations = [
        migrations.AddField(
            model_name="attempt",
            name="claim_id",
            field=models.CharField(blank=True, default="", max_length=64),
        ),
    ]
