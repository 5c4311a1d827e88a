"""A record has a card for each audience, what people stated and what was said of it later. Records sealed before keep
their one card, as that of the project itself."""

import json

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

AUDIENCES = [
    ("public", "Public"),
    ("downstream", "Downstream users of the model"),
    ("authority", "Authorities"),
    ("internal", "The project itself"),
]
KINDS = [
    ("sign_off", "Sign-off"),
    ("revoked", "Revoked"),
    ("superseded", "Superseded"),
    ("incident", "Incident"),
    ("feedback", "Feedback"),
    ("monitoring", "Monitoring note"),
    ("override", "Override"),
]


def id_field():
    return models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")


def person():
    return models.ForeignKey(
        on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL
    )


def of_record(name):
    return models.ForeignKey(
        on_delete=django.db.models.deletion.PROTECT, related_name=name, to="governance.record"
    )


def earlier_cards(apps, schema_editor):
    """The seal stands in record.json; the one card that there was is the project's own."""
    Record, Card = apps.get_model("governance", "Record"), apps.get_model("governance", "Card")
    for record in Record.objects.order_by("pk").iterator(chunk_size=50):
        record.seal = json.loads(record.document)["seal"]
        record.save(update_fields=["seal"])
        Card.objects.create(
            record=record,
            audience="internal",
            artifact=record.card_artifact,
            sha256=record.card_sha256,
            size=record.card_size,
            issued_at=record.sealed_at,
        )


class Migration(migrations.Migration):
    dependencies = [
        ("governance", "0003_record_of_which_end"),
        ("runs", "0009_whole_tables_guarded"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Card",
            fields=[
                ("id", id_field()),
                ("audience", models.CharField(choices=AUDIENCES, max_length=10)),
                ("issue", models.PositiveIntegerField(default=1)),
                ("artifact", models.CharField(max_length=200)),
                ("sha256", models.CharField(max_length=64)),
                ("size", models.BigIntegerField()),
                ("log_index", models.BigIntegerField(null=True)),
                ("checkpoint_size", models.BigIntegerField(null=True)),
                ("reason", models.TextField(blank=True)),
                ("issued_at", models.DateTimeField()),
                ("record", of_record("cards")),
            ],
            options={"ordering": ["record", "audience", "-issue"]},
        ),
        migrations.CreateModel(
            name="PublicLink",
            fields=[
                ("id", id_field()),
                ("token", models.CharField(max_length=64, unique=True)),
                ("at", models.DateTimeField(auto_now_add=True)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("by", person()),
                ("record", of_record("public_links")),
            ],
            options={"ordering": ["record", "-pk"]},
        ),
        migrations.CreateModel(
            name="RecordEntry",
            fields=[
                ("id", id_field()),
                ("kind", models.CharField(choices=KINDS, max_length=12)),
                ("role", models.CharField(blank=True, max_length=20)),
                ("decision", models.CharField(blank=True, max_length=20)),
                ("text", models.TextField()),
                ("data", models.JSONField(default=dict)),
                ("at", models.DateTimeField(auto_now_add=True)),
                ("by", person()),
                ("record", of_record("entries")),
            ],
            options={"ordering": ["record", "pk"]},
        ),
        migrations.CreateModel(
            name="Statement",
            fields=[
                ("id", id_field()),
                ("field", models.CharField(max_length=80)),
                ("value", models.JSONField(null=True)),
                ("text", models.TextField(blank=True)),
                ("audience", models.CharField(choices=AUDIENCES, max_length=10)),
                ("reason", models.TextField(blank=True)),
                ("at", models.DateTimeField(auto_now_add=True)),
                ("by", person()),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="statements", to="runs.run"
                    ),
                ),
            ],
            options={"ordering": ["run", "field", "-pk"]},
        ),
        migrations.AddIndex(
            model_name="statement",
            index=models.Index(fields=["run", "field", "-id"], name="statement_newest"),
        ),
        migrations.AddConstraint(
            model_name="card",
            constraint=models.UniqueConstraint(fields=("record", "audience", "issue"), name="one_card_per_issue"),
        ),
        migrations.RemoveConstraint(model_name="record", name="one_record_per_end"),
        migrations.AddField(
            model_name="record", name="seal", field=models.CharField(default="", max_length=64), preserve_default=False
        ),
        migrations.RunPython(earlier_cards, migrations.RunPython.noop),
    ]
