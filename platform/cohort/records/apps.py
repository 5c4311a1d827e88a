from django.apps import AppConfig


class RecordsConfig(AppConfig):
    name = "cohort.records"
    label = "records"
