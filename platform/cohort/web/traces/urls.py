"""Addresses about the texts of samples: below p/<slug>/."""

from django.urls import path

from cohort.web.traces import views

_GROUP = "runs/<int:run_id>/groups/<int:group_id>"

urlpatterns = [
    path(f"{_GROUP}/samples/<int:index>/proof.json", views.sample_proof, name="sample_proof"),
    path(f"{_GROUP}/redact/", views.samples_redact_page, name="samples_redact"),
    path("retention/", views.retention, name="retention"),
]
