from django.apps import AppConfig


class WebConfig(AppConfig):
    name = "cohort.web"
    label = "web"
