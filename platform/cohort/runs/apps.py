from django.apps import AppConfig


class RunsConfig(AppConfig):
    name = "cohort.runs"
    label = "runs"
