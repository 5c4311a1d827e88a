from django.apps import AppConfig


class GovernanceConfig(AppConfig):
    name = "cohort.governance"
    label = "governance"
