from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "cohort.accounts"
    label = "accounts"

    def ready(self) -> None:
        from cohort.accounts import sign_ins  # noqa: F401  # listens to Django's signals
