"""Addresses of nodes: below p/<slug>/nodes/."""

from django.urls import path

from cohort.web.nodes import views

urlpatterns = [
    path("", views.node_list, name="node_list"),
    path("new/", views.node_new, name="node_new"),
    path("<int:node_id>/", views.node_detail, name="node_detail"),
    path("<int:node_id>/drain/", views.node_drain, name="node_drain"),
    path("<int:node_id>/undrain/", views.node_undrain, name="node_undrain"),
    path("<int:node_id>/rotate/", views.node_rotate, name="node_rotate"),
    path("<int:node_id>/revoke/", views.node_revoke, name="node_revoke"),
]
