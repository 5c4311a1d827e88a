"""Entries, their places in the tree, signed heads of it, keys."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField()),
                ("actor", models.CharField(max_length=160)),
                ("kind", models.CharField(max_length=60)),
                ("subject", models.CharField(max_length=200)),
                ("project", models.SlugField(blank=True, db_index=False, max_length=60)),
                ("body", models.BinaryField()),
            ],
            options={
                "ordering": ["id"],
            },
        ),
        migrations.CreateModel(
            name="AuditLeaf",
            fields=[
                ("idx", models.BigIntegerField(primary_key=True, serialize=False)),
                ("leaf", models.BinaryField()),
            ],
            options={
                "ordering": ["idx"],
            },
        ),
        migrations.CreateModel(
            name="LogCheckpoint",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("size", models.BigIntegerField(unique=True)),
                ("note", models.TextField()),
                ("at", models.DateTimeField()),
            ],
            options={
                "ordering": ["size"],
            },
        ),
        migrations.CreateModel(
            name="LogCosignature",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("witness", models.CharField(max_length=300)),
                ("line", models.TextField()),
                ("at", models.DateTimeField()),
            ],
            options={
                "ordering": ["id"],
            },
        ),
        migrations.CreateModel(
            name="LogKey",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("vkey", models.CharField(max_length=300, unique=True)),
                ("since_size", models.BigIntegerField()),
                ("at", models.DateTimeField()),
                ("rotation", models.TextField(blank=True)),
            ],
            options={
                "ordering": ["id"],
            },
        ),
        migrations.CreateModel(
            name="LogPush",
            fields=[
                ("target", models.CharField(max_length=20, primary_key=True, serialize=False)),
                ("size", models.BigIntegerField(null=True)),
                ("pushed_at", models.DateTimeField(null=True)),
                ("failed_at", models.DateTimeField(null=True)),
                ("error", models.TextField(blank=True)),
            ],
        ),
        migrations.CreateModel(
            name="TreeHead",
            fields=[
                ("id", models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("size", models.BigIntegerField(default=0)),
                ("peaks", models.BinaryField(default=b"")),
            ],
        ),
        migrations.CreateModel(
            name="AuditPending",
            fields=[
                (
                    "entry",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        related_name="pending",
                        serialize=False,
                        to="audit.auditentry",
                    ),
                ),
            ],
        ),
        migrations.AddIndex(
            model_name="auditentry",
            index=models.Index(fields=["project", "-id"], name="audit_by_project"),
        ),
        migrations.AddIndex(
            model_name="auditentry",
            index=models.Index(fields=["kind", "-id"], name="audit_by_kind"),
        ),
        migrations.AddIndex(
            model_name="auditentry",
            index=models.Index(fields=["subject", "-id"], name="audit_by_subject"),
        ),
        migrations.AddField(
            model_name="auditleaf",
            name="entry",
            field=models.OneToOneField(
                on_delete=django.db.models.deletion.PROTECT, related_name="leaf", to="audit.auditentry"
            ),
        ),
        migrations.AddField(
            model_name="logcosignature",
            name="checkpoint",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="cosignatures", to="audit.logcheckpoint"
            ),
        ),
        migrations.AddField(
            model_name="logcheckpoint",
            name="key",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="checkpoints", to="audit.logkey"
            ),
        ),
        migrations.AddConstraint(
            model_name="treehead",
            constraint=models.CheckConstraint(condition=models.Q(("id", 1)), name="audit_one_head"),
        ),
        migrations.AddConstraint(
            model_name="logcosignature",
            constraint=models.UniqueConstraint(fields=("checkpoint", "witness"), name="audit_one_cosignature_each"),
        ),
    ]
