from django.apps import AppConfig


class AuditConfig(AppConfig):
    name = "cohort.audit"
    label = "audit"

    def ready(self) -> None:
        from cohort.audit import sign_ins  # noqa: F401  # listens to Django's signals
