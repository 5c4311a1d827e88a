"""Addresses of the catalog: below p/<slug>/."""

from django.urls import path

from cohort.web.catalog import reward_views, suite_views, task_views, views

urlpatterns = [
    path("models/", views.base_model_list, name="base_model_list"),
    path("models/new/", views.base_model_new, name="base_model_new"),
    path("models/<int:pk>/", views.base_model_detail, name="base_model_detail"),
    path("datasets/", views.dataset_list, name="dataset_list"),
    path("datasets/new/", views.dataset_new, name="dataset_new"),
    path("datasets/task/", task_views.task_dataset_new, name="task_dataset_new"),
    path("datasets/<int:pk>/", views.dataset_detail, name="dataset_detail"),
    path("suites/", suite_views.suite_list, name="suite_list"),
    path("suites/new/", suite_views.suite_new, name="suite_new"),
    path("suites/starters/", suite_views.suite_starters, name="suite_starters"),
    path("suites/<int:pk>/", suite_views.suite_detail, name="suite_detail"),
    path("suites/<int:pk>/new-version/", suite_views.suite_version_new, name="suite_version_new"),
    path("rewards/", reward_views.verifier_list, name="verifier_list"),
    path("rewards/new/", reward_views.verifier_new, name="verifier_new"),
    path("rewards/component/", reward_views.component_fields, name="component_fields"),
    path("rewards/check/", reward_views.component_check, name="component_check"),
    path("rewards/<int:pk>/", reward_views.verifier_detail, name="verifier_detail"),
    path("rewards/<int:pk>/new-version/", reward_views.verifier_version_new, name="verifier_version_new"),
    path("rewards/<int:pk>/compare/", reward_views.verifier_compare, name="verifier_compare"),
]
