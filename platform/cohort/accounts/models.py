"""People, projects and who may do what in which."""

from typing import ClassVar

from django.contrib.auth.models import AbstractUser
from django.core.exceptions import ValidationError
from django.db import models
from django.utils.crypto import salted_hmac


class User(AbstractUser):
    """A custom user model from the first migration, so that fields can be added later."""

    password_handed_out = models.BooleanField(default=False)
    """The password was generated on the server; the person has not chosen one yet."""
    session_generation = models.PositiveIntegerField(default=0)
    """Raised to end all of the person's sessions."""

    def get_session_auth_hash(self) -> str:
        """A session that was begun with another password, or in an earlier generation, is signed out."""
        value = f"{self.password}\0{self.session_generation}"
        return salted_hmac("cohort.accounts.models.User.session", value, algorithm="sha256").hexdigest()


RESERVED_SLUGS = {"new", "api", "static", "login", "logout"}
"""Words of the URLconf, or that would read as if they were."""


class Project(models.Model):
    """What separates teams: everything belongs to one project, and people outside it get 404."""

    slug = models.SlugField(max_length=60, unique=True)
    name = models.CharField(max_length=120)
    max_running = models.PositiveSmallIntegerField(null=True, blank=True)
    """Maximum number of runs on workers at once; empty: no limit."""
    gpu_hours_limit = models.PositiveIntegerField(null=True, blank=True)
    """GPU-hours that the project's runs may use in any 30 days; a run without a GPU counts as one. Empty: no limit."""
    max_members = models.PositiveIntegerField(null=True, blank=True)
    """Members and open invitations, at most. Empty, as in the three below: what the server's settings say."""
    max_upload_bytes = models.PositiveBigIntegerField(null=True, blank=True)
    """Bytes of its datasets and suites together, at most."""
    max_waiting_runs = models.PositiveIntegerField(null=True, blank=True)
    """Runs in the queue, at most."""
    max_open_jobs = models.PositiveIntegerField(null=True, blank=True)
    """Jobs of the reward lab that wait or run, at most."""
    traces_keep_days = models.PositiveIntegerField(null=True, blank=True)
    """Days after a run's end until the texts of its samples are deleted. Empty: they are kept."""
    created_at = models.DateTimeField(auto_now_add=True)
    opened_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    """Whose quota of projects it counts in."""
    members = models.ManyToManyField(User, through="Membership", related_name="projects")

    class Meta:
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        if self.slug in RESERVED_SLUGS:
            raise ValidationError({"slug": f"The URL name {self.slug} is used by Cohort itself. Choose another."})


class Role(models.TextChoices):
    VIEWER = "viewer", "Viewer: reads everything"
    REVIEWER = "reviewer", "Reviewer: reads and judges samples"
    OPERATOR = "operator", "Operator: also launches and stops runs, adds models, datasets, rewards"
    ADMIN = "admin", "Admin: also decides who belongs to the project"


def reaches(role: str, at_least: Role) -> bool:
    """Roles are listed by what they may, the least first."""
    return Role.values.index(role) >= Role.values.index(at_least)


class Membership(models.Model):
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.VIEWER)
    seen_at = models.DateTimeField(null=True)
    """When the person last marked the project's first page as seen."""
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["project", "user"], name="one_membership_per_project")]

    def __str__(self) -> str:
        return f"{self.user} in {self.project} as {self.role}"


class Invitation(models.Model):
    """To whoever signs in with exactly this name; there may be nobody. `invitations` decides which are open."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="invitations")
    username = models.CharField(max_length=150, db_index=True)
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.VIEWER)
    invited_by = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["project", "username"], name="invited_once")]

    def __str__(self) -> str:
        return f"{self.username} to {self.project} as {self.role}"


class SignInCount(models.Model):
    """Failed sign-ins of a name, an address, or both together (`sign_in_delays`)."""

    key = models.CharField(max_length=64, primary_key=True)
    """Keyed hash of what is counted."""
    failures = models.FloatField()
    """At `counted_at`; they are forgiven with time."""
    counted_at = models.DateTimeField(db_index=True)
    delayed_until = models.DateTimeField()
    signed_in_at = models.DateTimeField(null=True)
    """When the name last signed in from the address; null in counts of one of them alone."""

    def __str__(self) -> str:
        return f"{self.failures:.1f} failures, delayed until {self.delayed_until:%H:%M:%S}"


class ApiScope(models.TextChoices):
    """Listed by what they may, the least first."""

    READ = "read", "Read"
    LAUNCH = "launch", "Launch"


class ApiToken(models.Model):
    """What a script sends in place of its person's password (`api_tokens`). Its secret is stored nowhere."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=80)
    key_id = models.CharField(max_length=12, unique=True)
    """The token's public part, which lists and the audit log show."""
    digest = models.CharField(max_length=64)
    """Keyed hash of the whole token."""
    scope = models.CharField(max_length=10, choices=ApiScope.choices, default=ApiScope.READ)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True)
    """To the minute."""
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["-id"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    @property
    def prefix(self) -> str:
        """What the token begins with."""
        return f"cohort_pat_{self.key_id}"
