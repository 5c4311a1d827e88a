"""Addresses of the log: below log/. All but the server's own entries are open to anyone."""

from django.urls import path

from cohort.web.audit import views

urlpatterns = [
    path("", views.log_page, name="log_page"),
    path("checkpoint", views.log_checkpoint, name="log_checkpoint"),
    path("checkpoints", views.log_checkpoints, name="log_checkpoints"),
    path("keys.json", views.log_keys, name="log_keys"),
    path("server/", views.entries, name="log_server"),
    path("server/entries.jsonl", views.entries_jsonl, name="log_server_jsonl"),
    path("server/entries.csv", views.entries_csv, name="log_server_csv"),
    path("server/<int:entry_id>/entry.json", views.entry_body, name="log_server_entry"),
    path("server/<int:entry_id>/proof", views.entry_proof, name="log_server_proof"),
]
