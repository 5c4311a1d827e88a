"""Rules, channels, alerts and their deliveries."""

from typing import ClassVar

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.utils.crypto import salted_hmac

from cohort.accounts.models import Project
from cohort.alerts.webhook_signature import format_secret
from cohort.runs.models import Run, RunEvent


class ChannelKind(models.TextChoices):
    WEBHOOK = "webhook", "Webhook"
    EMAIL = "email", "E-mail"


class Condition(models.TextChoices):
    DIAGNOSIS = "diagnosis", "The trainer reports a fault"
    ENDED = "ended", "A run failed, or was cancelled without anyone requesting it"
    UNSEALED = "unsealed", "A record could not be sealed"
    SEARCH = "search", "A run matches a search"


class AlertChannel(models.Model):
    """Where alerts are sent."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="alert_channels", db_index=False)
    name = models.CharField(max_length=60)
    kind = models.CharField(max_length=10, choices=ChannelKind.choices)
    address = models.CharField(max_length=500)
    """A web address, or one e-mail address."""
    salt = models.CharField(max_length=32, blank=True)
    """Of a webhook's secret, which is derived from it and the server's secret key, and stored nowhere."""
    private = models.BooleanField(default=False)
    """The address may be one that the public internet does not have. Only who manages the server may allow that."""
    enabled = models.BooleanField(default=True)
    disabled_why = models.CharField(max_length=200, blank=True)
    """Why the platform switched it off; empty when a person did."""
    test_requested_at = models.DateTimeField(null=True)
    """Null once the receiver has answered."""
    test_requested_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+"
    )
    tested_at = models.DateTimeField(null=True)
    test_status = models.PositiveSmallIntegerField(null=True)
    """HTTP status of the last test."""
    test_error = models.TextField(blank=True)
    """Of the last test; empty when it was taken."""
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["name"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["project", "name"], name="alert_channel_name_once"),
            models.CheckConstraint(condition=Q(kind__in=ChannelKind.values), name="alert_channel_kind_known"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def secret(self) -> str:
        """What a webhook's calls are signed with, as whsec_<base64>."""
        return format_secret(salted_hmac("cohort.alerts.webhook", self.salt, algorithm="sha256").digest())

    @property
    def masked_address(self) -> str:
        """For who may not edit it, and for the audit log: a web address often holds a token."""
        if self.kind == ChannelKind.EMAIL:
            name, _, host = self.address.rpartition("@")
            return f"{name[:1]}…@{host}"
        scheme, _, rest = self.address.partition("://")
        return f"{scheme}://{rest.partition('/')[0].partition('?')[0]}/…"


class AlertRule(models.Model):
    """What opens an alert, and which channels carry it. Every project has those of `rules.DEFAULTS`."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="alert_rules", db_index=False)
    name = models.CharField(max_length=80)
    condition = models.CharField(max_length=10, choices=Condition.choices)
    causes = ArrayField(models.CharField(max_length=40), default=list, blank=True)
    """Of a diagnosis: the codes that count; empty: any."""
    query = models.CharField(max_length=2000, blank=True)
    """Of a search, in the language of the list of runs."""
    channels = models.ManyToManyField(AlertChannel, related_name="rules", blank=True)
    enabled = models.BooleanField(default=True)
    since = models.DateTimeField()
    """When the condition was last set: runs that ended before are not searched."""
    checked_at = models.DateTimeField(null=True)
    """When its search was last made in full."""
    fault = models.TextField(blank=True)
    """Why its search cannot be made at present."""
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+")
    """Null: it came with the project."""

    class Meta:
        ordering: ClassVar = ["id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["project", "name"], name="alert_rule_name_once"),
            models.CheckConstraint(condition=Q(condition__in=Condition.values), name="alert_condition_known"),
        ]

    def __str__(self) -> str:
        return self.name


class Alert(models.Model):
    """A rule's condition held of a run. Open until a person acknowledges or closes it."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="alerts", db_index=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="alerts")
    rule = models.ForeignKey(AlertRule, on_delete=models.SET_NULL, null=True, related_name="alerts")
    """Null once it is deleted."""
    rule_name = models.CharField(max_length=80)
    condition = models.CharField(max_length=10, choices=Condition.choices)
    cause = models.CharField(max_length=60)
    """A diagnosis' code, the state that the run ended in, `unsealed`, or `search`."""
    opened_at = models.DateTimeField()
    step = models.PositiveIntegerField(null=True)
    title = models.CharField(max_length=120)
    text = models.TextField()
    advice = models.TextField(blank=True)
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+")
    note = models.TextField(blank=True)
    """Of who acknowledged or closed it."""
    closed_at = models.DateTimeField(null=True)
    closed_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+")
    """Null: the platform did, by `closed_why`."""
    closed_why = models.CharField(max_length=120, blank=True)
    holds = models.BooleanField(default=True)
    """While it does, the same cause opens no other: until it is closed and, of a search, the run matches no more."""

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["rule", "run", "cause"], condition=Q(holds=True), name="alert_once")
        ]
        indexes: ClassVar = [
            models.Index(fields=["project", "-id"], name="alert_by_project"),
            models.Index(fields=["run"], condition=Q(closed_at=None), name="alert_not_closed"),
            models.Index(
                fields=["project", "-id"], condition=Q(closed_at=None, acknowledged_at=None), name="alert_open"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.title} of {self.run_id}"

    @property
    def state(self) -> str:
        return "closed" if self.closed_at else "acknowledged" if self.acknowledged_at else "open"


class AlertDelivery(models.Model):
    """One alert by one channel, with its tries. Tried at least once; the receiver may get it twice, with one id."""

    alert = models.ForeignKey(Alert, on_delete=models.CASCADE, related_name="deliveries", db_index=False)
    channel = models.ForeignKey(AlertChannel, on_delete=models.SET_NULL, null=True, related_name="deliveries")
    channel_name = models.CharField(max_length=60)
    tries = models.PositiveSmallIntegerField(default=0)
    next_try_at = models.DateTimeField(null=True)
    """Null: delivered, or given up."""
    status = models.PositiveSmallIntegerField(null=True)
    """HTTP status of the last try."""
    error = models.TextField(blank=True)
    """Of the last try; empty when it was delivered."""
    delivered_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["id"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["alert", "channel"], name="alert_delivery_once")]
        indexes: ClassVar = [
            models.Index(fields=["next_try_at"], condition=Q(next_try_at__isnull=False), name="alert_delivery_due")
        ]

    def __str__(self) -> str:
        return f"alert {self.alert_id} by {self.channel_name}"

    @property
    def state(self) -> str:
        if self.delivered_at:
            return "delivered"
        return "waiting" if self.next_try_at else "given up"


class AlertPending(models.Model):
    """An event that rules have not been applied to yet. A trigger of the database adds it with the event, in the
    transaction of whoever writes that (migrations/alerts/), so none is lost and ingest does nothing more."""

    # Without a constraint, which ingest would pay for: no event is ever deleted.
    event = models.OneToOneField(
        RunEvent, on_delete=models.DO_NOTHING, primary_key=True, db_constraint=False, related_name="+"
    )

    def __str__(self) -> str:
        return f"event {self.event_id}"
