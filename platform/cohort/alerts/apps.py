from django.apps import AppConfig


class AlertsConfig(AppConfig):
    name = "cohort.alerts"
    label = "alerts"

    def ready(self) -> None:
        from cohort.alerts import rules  # noqa: F401  # receives the signal of a new project
