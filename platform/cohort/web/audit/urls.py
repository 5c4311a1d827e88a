"""Addresses of a project's entries: below p/<slug>/audit/."""

from django.urls import path

from cohort.web.audit import views

urlpatterns = [
    path("", views.entries, name="audit_list"),
    path("entries.jsonl", views.entries_jsonl, name="audit_jsonl"),
    path("entries.csv", views.entries_csv, name="audit_csv"),
    path("<int:entry_id>/entry.json", views.entry_body, name="audit_entry"),
    path("<int:entry_id>/proof", views.entry_proof, name="audit_proof"),
]
