from django.apps import AppConfig


class ContaminationConfig(AppConfig):
    name = "cohort.contamination"
    label = "contamination"
