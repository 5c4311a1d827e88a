"""Addresses of records: below p/<slug>/."""

from django.urls import path

from cohort.governance import views

urlpatterns = [
    path("records/", views.record_list, name="record_list"),
    path("runs/<int:run_id>/record/", views.record_detail, name="record_detail"),
    path("runs/<int:run_id>/record/card.zip", views.card_download, name="card_download"),
    path("runs/<int:run_id>/record/<int:end>/", views.record_detail, name="record_of_end"),
    path("runs/<int:run_id>/record/<int:end>/card.zip", views.card_download, name="card_of_end"),
]
