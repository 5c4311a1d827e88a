"""Addresses of cards: below p/<slug>/."""

from django.urls import path

from cohort.web.cards import views

_RECORD = "runs/<int:run_id>/record"

urlpatterns = [
    path(f"{_RECORD}/card.zip", views.card_download, name="card_download"),
    path(f"{_RECORD}/<int:end>/card.zip", views.card_download, name="card_of_end"),
    path(f"{_RECORD}/<int:end>/<int:version>/card-<slug:audience>.zip", views.card_download, name="card_for"),
    path(f"{_RECORD}/verify.pyz", views.verify_pyz, name="verify_pyz"),
    path(f"{_RECORD}/<int:end>/seal-version/", views.version_seal, name="record_version_seal"),
]
