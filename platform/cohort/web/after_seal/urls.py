"""Addresses of what came after a seal: below p/<slug>/."""

from django.urls import path

from cohort.web.after_seal import views

urlpatterns = [
    path("runs/<int:run_id>/record/<int:end>/life/", views.record_life, name="record_life"),
    path("runs/<int:run_id>/record/<int:end>/public/", views.record_public, name="record_public"),
]
