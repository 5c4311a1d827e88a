from django.apps import AppConfig


class ContaminationConfig(AppConfig):
    name = "cohort.contamination"
    label = "contamination"

    def ready(self) -> None:
        from cohort.contamination import services  # noqa: F401  # receives the catalog's signals
