from django.apps import AppConfig
from django.db.models.signals import post_migrate

from cohort.base.database_roles import grant_roles


class AccountsConfig(AppConfig):
    name = "cohort.accounts"
    label = "accounts"

    def ready(self) -> None:
        from cohort.accounts import sign_ins  # noqa: F401  # listens to Django's signals

        post_migrate.connect(grant_roles, sender=self)  # sent for each app; for one of them is once
