from django.apps import AppConfig
from django.db.models.signals import post_migrate, pre_migrate

from cohort.base.database_roles import grant_roles
from cohort.base.schema_version import refuse_newer


class AccountsConfig(AppConfig):
    name = "cohort.accounts"
    label = "accounts"

    def ready(self) -> None:
        from cohort.accounts import sign_ins  # noqa: F401  # listens to Django's signals

        # Sent for each app; for one of them is once.
        pre_migrate.connect(refuse_newer, sender=self)
        post_migrate.connect(grant_roles, sender=self)
