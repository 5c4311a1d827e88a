from django.apps import AppConfig


class NodesConfig(AppConfig):
    name = "cohort.nodes"
    label = "nodes"
