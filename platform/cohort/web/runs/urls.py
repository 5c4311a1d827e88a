"""Addresses of runs: below p/<slug>/."""

from django.urls import include, path

from cohort.web.launch import form
from cohort.web.runs import actions, again, downloads, imports, listing, page, queue

urlpatterns = [
    path("runs/", listing.run_list, name="run_list"),
    path("runs/new/", form.run_new, name="run_new"),
    path("runs/estimates/<int:job_id>/", form.run_estimate, name="run_estimate"),
    path("runs/<int:run_id>/", page.run_detail, name="run_detail"),
    path("runs/<int:run_id>/live/", page.run_live, name="run_live"),
    path("runs/<int:run_id>/series.json", page.run_series, name="run_series"),
    path("runs/<int:run_id>/evaluations/", page.run_evaluations, name="run_evaluations"),
    path("runs/<int:run_id>/evaluations/import/", imports.run_import, name="run_import"),
    path("runs/<int:run_id>/attempts/", page.run_attempts, name="run_attempts"),
    path("runs/<int:run_id>/logs/", page.run_logs, name="run_logs"),
    path("runs/<int:run_id>/config/", page.run_config, name="run_config"),
    path("runs/<int:run_id>/config.yaml", downloads.run_config_yaml, name="run_config_yaml"),
    path("runs/<int:run_id>/metrics.csv", downloads.run_metrics_csv, name="run_metrics_csv"),
    path("runs/<int:run_id>/events/", page.run_events, name="run_events"),
    path("runs/<int:run_id>/submit/", actions.run_submit, name="run_submit"),
    path("runs/<int:run_id>/cancel/", actions.run_cancel, name="run_cancel"),
    path("runs/<int:run_id>/pause/", actions.run_pause, name="run_pause"),
    path("runs/<int:run_id>/resume/", actions.run_resume, name="run_resume"),
    path("runs/<int:run_id>/retry/", again.run_retry, name="run_retry"),
    path("runs/<int:run_id>/extend/", again.run_extend, name="run_extend"),
    path("runs/<int:run_id>/priority/", actions.run_priority, name="run_priority"),
    path("runs/<int:run_id>/checkpoints/<int:checkpoint_id>/pin/", actions.checkpoint_pin, name="checkpoint_pin"),
    path("queue/", queue.queue, name="queue"),
    path("limits/", queue.limits, name="project_limits"),
    path("", include("cohort.web.review.urls")),
]
