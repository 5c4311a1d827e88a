from django.apps import AppConfig


class ReviewConfig(AppConfig):
    name = "cohort.review"
    label = "review"
