from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "cohort.accounts"
    label = "accounts"
