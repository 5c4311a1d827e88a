from django.apps import AppConfig


class LabConfig(AppConfig):
    name = "cohort.lab"
    label = "lab"
