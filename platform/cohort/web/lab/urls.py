"""Addresses of the reward lab: below p/<slug>/."""

from django.urls import path

from cohort.web.lab import job_views, views

urlpatterns = [
    path("lab/", views.lab_home, name="lab_home"),
    path("lab/draft/", views.lab_draft, name="lab_draft"),
    path("lab/try/", views.verifier_try, name="verifier_try"),
    path("lab/ask/", views.lab_ask, name="lab_ask"),
    path("lab/jobs/<int:job_id>/", job_views.lab_job, name="lab_job"),
    path("lab/jobs/<int:job_id>/live/", job_views.lab_job_live, name="lab_job_live"),
    path("lab/jobs/<int:job_id>/cancel/", job_views.lab_job_cancel, name="lab_job_cancel"),
    path("lab/jobs/<int:job_id>/result.json", job_views.lab_job_result, name="lab_job_result"),
    path("lab/jobs/<int:job_id>/groups/<int:at>/", job_views.lab_job_group, name="lab_job_group"),
    path("rewards/<int:pk>/lab/", views.verifier_lab, name="verifier_lab"),
]
