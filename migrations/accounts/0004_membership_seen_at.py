from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0003_people_and_quotas"),
    ]

    operations = [
        migrations.AddField(
            model_name="membership",
            name="seen_at",
            field=models.DateTimeField(null=True),
        ),
    ]
