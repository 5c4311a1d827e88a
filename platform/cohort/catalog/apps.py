from django.apps import AppConfig


class CatalogConfig(AppConfig):
    name = "cohort.catalog"
    label = "catalog"
