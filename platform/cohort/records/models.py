"""Governance models: the records of a run and their cards, statements by people, entries added to a record after its
seal. All but public links, drafts and requests are only added to; PostgreSQL itself refuses to change or delete a
row."""

from typing import ClassVar

from django.conf import settings
from django.db import models

from cohort.accounts.models import Project
from cohort.runs.models import Run


class Audience(models.TextChoices):
    """Who may see a field or a file. Each sees what those before it see, and more."""

    PUBLIC = "public", "Public"
    DOWNSTREAM = "downstream", "Downstream users of the model"
    AUTHORITY = "authority", "Authorities"
    INTERNAL = "internal", "Internal"


class Record(models.Model):
    """One is sealed at each end of a run, and another version of it when more was stated afterwards."""

    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="records")
    end = models.PositiveIntegerField()
    """Which of the run's ends this is of: `Run.ends` when it was sealed. An end may come without a new attempt."""
    version = models.PositiveIntegerField(default=1)
    """Counted within the end. A later version adds fields; it never takes an earlier one's place silently."""
    supersedes = models.OneToOneField(
        "self", on_delete=models.PROTECT, null=True, blank=True, related_name="superseded_by"
    )
    fence = models.PositiveIntegerField()
    """Number of the run's newest attempt when it was sealed: the record is of everything up to that one."""
    schema_version = models.CharField(max_length=40)
    document = models.TextField()
    """record.json for the project itself, exactly as sealed: RFC 8785 canonical bytes with the salt of every field."""
    seal = models.CharField(max_length=64, db_index=True)
    """The digest that people compare; the same in the card of every audience."""
    record_root = models.CharField(max_length=64)
    """Root of the Merkle tree over the record's fields."""
    run_root = models.CharField(max_length=64, blank=True)
    """Root of the Merkle tree over the run's completions; empty in records of the first schema."""
    fields_stated = models.PositiveIntegerField()
    fields_total = models.PositiveIntegerField()
    sealed_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["-sealed_at"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["run", "end", "version"], name="one_record_per_version")
        ]

    def __str__(self) -> str:
        return f"record of {self.run}"

    def card(self, audience: str = Audience.INTERNAL) -> "Card":
        """The newest issue for this audience. Raises Card.DoesNotExist."""
        return self.cards.filter(audience=audience).latest("issue")

    @property
    def short_digest(self) -> str:
        """The seal's first 16 digits in groups of four, to be read out and compared."""
        return " ".join(self.seal[at : at + 4] for at in range(0, 16, 4))


class Card(models.Model):
    """The zip of a record for one audience. Issued again when a trace was redacted; the record's seal stays."""

    record = models.ForeignKey(Record, on_delete=models.PROTECT, related_name="cards")
    audience = models.CharField(max_length=10, choices=Audience.choices)
    issue = models.PositiveIntegerField(default=1)
    artifact = models.CharField(max_length=200)
    """Key in the artifact store."""
    sha256 = models.CharField(max_length=64)
    size = models.BigIntegerField()
    log_index = models.BigIntegerField(null=True)
    """Index of its entry in the audit log; null for cards of the first schema, which are in no log."""
    checkpoint_size = models.BigIntegerField(null=True)
    """Size of the log at the checkpoint in the card."""
    reason = models.TextField(blank=True)
    """Why it was issued again."""
    issued_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["record", "audience", "-issue"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["record", "audience", "issue"], name="one_card_per_issue")
        ]

    def __str__(self) -> str:
        return f"{self.audience} card of {self.record}"


class Stated(models.Model):
    """What a person states in a field of the record."""

    field = models.CharField(max_length=80)
    """section.field of the record."""
    value = models.JSONField(null=True)
    """For machines, such as the chosen answer; null where the text is all, or when it was withdrawn."""
    text = models.TextField(blank=True)
    """Empty when it was withdrawn."""
    audience = models.CharField(max_length=10, choices=Audience.choices)
    reason = models.TextField(blank=True)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        abstract = True

    @property
    def in_force(self) -> bool:
        """False of one that only withdraws what was stated before."""
        return bool(self.text or self.value is not None)


class StandingAnswer(Stated):
    """A project's answer to a question that it answers alike for its runs. The newest of a field is in force; it is in
    no record until a person states it of a run."""

    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="standing_answers")

    class Meta:
        ordering: ClassVar = ["project", "field", "-pk"]
        indexes: ClassVar = [models.Index(fields=["project", "field", "-id"], name="standing_newest")]

    def __str__(self) -> str:
        return f"{self.field} of {self.project}"


class Statement(Stated):
    """A person's statement on a field that cannot be measured. The newest of a field is in force."""

    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="statements")
    standing = models.ForeignKey(StandingAnswer, on_delete=models.PROTECT, null=True, related_name="statements")
    """The project's standing answer that it repeats; null for words of the person's own."""

    class Meta:
        ordering: ClassVar = ["run", "field", "-pk"]
        indexes: ClassVar = [models.Index(fields=["run", "field", "-id"], name="statement_newest")]

    def __str__(self) -> str:
        return f"{self.field} of {self.run}"


class StatementDraft(models.Model):
    """What a person has typed as the answer to one question and not saved. In no record, and seen by that person
    alone."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="statement_drafts")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, null=True, related_name="statement_drafts")
    """Null: of the project's standing answer."""
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="statement_drafts")
    field = models.CharField(max_length=80)
    text = models.TextField(blank=True)
    chosen = models.JSONField(default=list)
    audience = models.CharField(max_length=80)
    since = models.BigIntegerField(default=0)
    """Id of the answer that was in force when it was begun; 0 for none."""
    standing = models.ForeignKey(StandingAnswer, on_delete=models.CASCADE, null=True, related_name="+")
    """The standing answer that it was filled with."""
    revision = models.PositiveIntegerField(default=0)
    window = models.CharField(max_length=16, blank=True)
    """The browser window that saved it last."""
    saved_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering: ClassVar = ["project", "run", "field"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["user", "project", "run", "field"], name="statement_draft_once", nulls_distinct=False
            ),
        ]

    def __str__(self) -> str:
        return f"{self.field}, not saved"


class EntryKind(models.TextChoices):
    SIGN_OFF = "sign_off", "Sign-off"
    REVOKED = "revoked", "Revoked"
    SUPERSEDED = "superseded", "Superseded"
    INCIDENT = "incident", "Incident"
    FEEDBACK = "feedback", "Feedback"
    MONITORING = "monitoring", "Monitoring note"
    OVERRIDE = "override", "Override"


class RecordEntry(models.Model):
    """An entry added to a record after it was sealed: sign-offs, revocation, incidents, feedback, monitoring."""

    record = models.ForeignKey(Record, on_delete=models.PROTECT, related_name="entries")
    kind = models.CharField(max_length=12, choices=EntryKind.choices)
    role = models.CharField(max_length=20, blank=True)
    """Of a sign-off: in which of the two roles."""
    decision = models.CharField(max_length=20, blank=True)
    """Of a sign-off: approved or rejected."""
    text = models.TextField()
    """The reason, or what happened."""
    data = models.JSONField(default=dict)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["record", "pk"]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} of {self.record}"


class PolicyVersion(models.Model):
    """One version of the rules that a project's records are judged by. The newest is in force."""

    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="policy_versions")
    number = models.PositiveIntegerField()
    """Counted from 1 in the project."""
    text = models.TextField(blank=True)
    """The file as it was written (cohort-policy/1); empty where the policy was withdrawn."""
    digest = models.CharField(max_length=64, blank=True)
    """Of its content, whatever its layout: evidence.policy.text."""
    demanded = models.BooleanField(default=False)
    """No record gets a public page unless it meets the rules."""
    reason = models.TextField()
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["project", "-number"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["project", "number"], name="policy_version_once"),
        ]

    def __str__(self) -> str:
        return f"version {self.number} of the policy of {self.project}"


class PublicLink(models.Model):
    """An address that cannot be guessed, at which anyone reads the public part of a record."""

    record = models.ForeignKey(Record, on_delete=models.PROTECT, related_name="public_links")
    token = models.CharField(max_length=64, unique=True)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    """When it was withdrawn; it answers 404 since."""

    class Meta:
        ordering: ClassVar = ["record", "-pk"]

    def __str__(self) -> str:
        return f"public link of {self.record}"


class RecordStatus(models.Model):
    """A signed status of a record for one group of audiences: what happened since its seal. The newest counts."""

    record = models.ForeignKey(Record, on_delete=models.PROTECT, related_name="statuses")
    audience = models.CharField(max_length=10, choices=Audience.choices)
    """public: for the public card and the one for downstream; authority: for the other two."""
    life_sha256 = models.CharField(max_length=64)
    """Of what it says of the record, without its own times: another status is due when this would differ."""
    bundle = models.TextField()
    """status.json, exactly as signed (RFC 8785)."""
    page = models.TextField()
    """STATUS.html."""
    paper = models.BinaryField()
    """STATUS.pdf."""
    log_index = models.BigIntegerField()
    """Index of its entry in the audit log."""
    issued_at = models.DateTimeField()
    valid_until = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["record", "audience", "-log_index"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["record", "audience", "log_index"], name="one_status_per_entry")
        ]

    def __str__(self) -> str:
        return f"{self.audience} status of {self.record}"


class PipelineCard(models.Model):
    """The zip of a pipeline: the cards of its stages, what passed between them and what each changed."""

    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="pipeline_cards")
    title = models.CharField(max_length=200)
    seal = models.CharField(max_length=64, db_index=True)
    """SHA-256 over pipeline.json."""
    changes = models.JSONField()
    """As `evidence.stage_changes.stage_changes` gives it."""
    artifact = models.CharField(max_length=200)
    """Key in the artifact store."""
    sha256 = models.CharField(max_length=64)
    size = models.BigIntegerField()
    log_index = models.BigIntegerField()
    """Index of its entry in the audit log."""
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["project", "-pk"]

    def __str__(self) -> str:
        return f"card of the pipeline {self.title}"


class PipelineCardStage(models.Model):
    """One stage in the card of a pipeline."""

    pipeline_card = models.ForeignKey(PipelineCard, on_delete=models.PROTECT, related_name="stages")
    position = models.PositiveSmallIntegerField()
    name = models.CharField(max_length=60)
    card = models.ForeignKey(Card, on_delete=models.PROTECT, related_name="in_pipelines")
    """The stage's public card in the zip."""

    class Meta:
        ordering: ClassVar = ["pipeline_card", "position"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["pipeline_card", "position"], name="pipeline_card_stage_once"),
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.pipeline_card}"


class PipelineCardRequest(models.Model):
    """A person requested the card of a pipeline; the sealing worker, which has the log's key, makes it. Waits while it
    has neither a card nor a fault."""

    pipeline = models.ForeignKey("pipelines.Pipeline", on_delete=models.PROTECT, related_name="card_requests")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField(auto_now_add=True)
    tries = models.PositiveSmallIntegerField(default=0)
    """How often a process began to make it."""
    card = models.OneToOneField(PipelineCard, on_delete=models.PROTECT, null=True, related_name="request")
    fault = models.TextField(blank=True, default="")
    """Why no card was made of it."""

    class Meta:
        ordering: ClassVar = ["-pk"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["pipeline"], condition=models.Q(card=None, fault=""), name="pipeline_card_requested_once"
            ),
        ]

    def __str__(self) -> str:
        return f"request for the card of {self.pipeline}"

    @property
    def waits(self) -> bool:
        return self.card_id is None and not self.fault
