"""What every beat asks for is few of a run's checkpoints, however many it has had: those that are pinned, and those that
somebody still has."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0007_gpus_of_earlier_runs")]

    operations = [
        migrations.AddIndex(
            model_name="checkpoint",
            index=models.Index(condition=models.Q(("pinned", True)), fields=["run"], name="checkpoint_pinned"),
        ),
        migrations.AddIndex(
            model_name="checkpoint",
            index=models.Index(
                condition=models.Q(("removed_at", None), ("stored_at__isnull", False), _connector="OR"),
                fields=["run", "step"],
                name="checkpoint_held",
            ),
        ),
    ]
