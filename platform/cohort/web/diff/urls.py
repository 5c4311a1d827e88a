"""Address of the comparison of two records: below p/<slug>/."""

from django.urls import path

from cohort.web.diff import views

urlpatterns = [path("records/compare/", views.record_compare, name="record_compare")]
