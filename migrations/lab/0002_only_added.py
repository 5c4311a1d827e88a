from django.db import migrations

from migrations.append_only import append_only


class Migration(migrations.Migration):
    dependencies = [("lab", "0001_initial")]

    operations = append_only("lab_verifierprobe", "lab_launchprobe")
