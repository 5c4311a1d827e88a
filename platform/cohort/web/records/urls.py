"""Addresses of records: below p/<slug>/."""

from django.urls import include, path

from cohort.web.records import views

urlpatterns = [
    path("records/", views.record_list, name="record_list"),
    path("", include("cohort.web.cards.urls")),
    path("", include("cohort.web.statements.urls")),
    path("", include("cohort.web.after_seal.urls")),
    path("", include("cohort.web.diff.urls")),
    path("runs/<int:run_id>/record/", views.record_detail, name="record_detail"),
    path("runs/<int:run_id>/record/<int:end>/", views.record_detail, name="record_of_end"),
]
