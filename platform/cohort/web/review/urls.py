"""Addresses of groups: below p/<slug>/."""

from django.urls import path

from cohort.web.review import views

urlpatterns = [
    path("runs/<int:run_id>/groups/", views.run_groups, name="run_groups"),
    path("runs/<int:run_id>/groups/<int:group_id>/", views.group_detail, name="group_detail"),
    path("runs/<int:run_id>/groups/<int:group_id>/samples/<int:index>/judge/", views.sample_judge, name="sample_judge"),
]
