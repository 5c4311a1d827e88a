from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0013_needs_sandbox")]

    operations = [
        migrations.AddField(model_name="run", name="needs_packages", field=models.JSONField(default=list)),
    ]
