"""Addresses of records: below p/<slug>/."""

from django.urls import include, path

from cohort.governance import views

urlpatterns = [
    path("", include("cohort.governance.cards.urls")),
    path("", include("cohort.governance.statements.urls")),
    path("", include("cohort.governance.life.urls")),
    path("", include("cohort.governance.diff.urls")),
    path("runs/<int:run_id>/record/", views.record_detail, name="record_detail"),
    path("runs/<int:run_id>/record/<int:end>/", views.record_detail, name="record_of_end"),
]
