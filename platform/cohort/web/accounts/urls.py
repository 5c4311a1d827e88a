"""Addresses of a project's own pages: below p/<slug>/."""

from django.urls import path

from cohort.web.accounts import views

urlpatterns = [
    path("", views.project_home, name="project_home"),
    path("counts/", views.project_counts, name="project_counts"),
    path("members/", views.member_list, name="member_list"),
    path("members/<int:membership_id>/role/", views.member_role, name="member_role"),
    path("members/<int:membership_id>/remove/", views.member_remove, name="member_remove"),
]
