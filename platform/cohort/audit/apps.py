from django.apps import AppConfig


class AuditConfig(AppConfig):
    name = "cohort.audit"
    label = "audit"
