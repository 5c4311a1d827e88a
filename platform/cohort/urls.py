"""All addresses of the platform.

Everything of a project lies below p/<slug>/, so that an address shows whose it is and `access.project_for`
can decide. Only sign-in, the health check, static files, the check of a card, the audit log's signed heads,
records' public pages (by tokens that cannot be guessed), the worker API and the public API (which have their own) are
open to people who are not signed in; tests/web/test_access.py walks this list.
"""

from django.contrib.auth.views import LogoutView
from django.urls import URLPattern, URLResolver, include, path, register_converter

from cohort.web import readiness
from cohort.web.accounts import api_tokens, people
from cohort.web.accounts import views as accounts
from cohort.web.after_seal import public_views
from cohort.web.after_seal import views as after_seal
from cohort.web.alerts import channels, desk, rules
from cohort.web.audit import views as audit
from cohort.web.cards import evaluation_logs, status_views, summaries
from cohort.web.cards import views as cards
from cohort.web.catalog import reward_views, suite_views
from cohort.web.catalog import views as catalog
from cohort.web.compare import answers
from cohort.web.compare import views as compare
from cohort.web.diff import views as diff
from cohort.web.home import views as home
from cohort.web.lab import chat_views as chat
from cohort.web.lab import job_views
from cohort.web.lab import views as lab
from cohort.web.lab.evaluation_views import base_model_evaluate
from cohort.web.launch import form, job_panels, sweep_views
from cohort.web.nodes import views as nodes
from cohort.web.pipelines import views as pipelines
from cohort.web.policies import views as policies
from cohort.web.records import verify_page
from cohort.web.records import views as records
from cohort.web.review import judging, pair_views, problems, samples, scatter, token_view, uses
from cohort.web.review import queue_views as review_queues
from cohort.web.review import rescore_views as rescores
from cohort.web.review import views as review
from cohort.web.review.export import samples_export
from cohort.web.review.run_review import run_review
from cohort.web.runs import (
    actions,
    checkpoint_page,
    imported,
    list_actions,
    list_rows,
    logs,
    own_charts,
    page,
    queue,
    retry,
    reward_page,
    series,
)
from cohort.web.statements import views as statements
from cohort.web.traces import views as traces

register_converter(problems.ProblemKey, "problem")
_RECORD = "runs/<int:run_id>/record"
_CHECKPOINT = "runs/<int:run_id>/checkpoints/<int:checkpoint_id>/"
_GROUP = "runs/<int:run_id>/groups/<int:group_id>"

_accounts = [
    path("", home.project_home, name="project_home"),
    path("seen/", home.project_seen, name="project_seen"),
    path("counts/", accounts.project_counts, name="project_counts"),
    path("members/", accounts.member_list, name="member_list"),
    path("members/invitations/<int:invitation_id>/withdraw/", accounts.invitation_withdraw, name="invitation_withdraw"),
    path("members/<int:membership_id>/role/", accounts.member_role, name="member_role"),
    path("members/<int:membership_id>/remove/", accounts.member_remove, name="member_remove"),
]
_people = [
    path("", people.person_list, name="person_list"),
    path("<int:user_id>/", people.person_detail, name="person_detail"),
    path("<int:user_id>/disable/", people.person_disable, name="person_disable"),
    path("<int:user_id>/enable/", people.person_enable, name="person_enable"),
    path("<int:user_id>/end-sessions/", people.person_sessions_end, name="person_sessions_end"),
]
_nodes = [
    path("", nodes.node_list, name="node_list"),
    path("new/", nodes.node_new, name="node_new"),
    path("<int:node_id>/", nodes.node_detail, name="node_detail"),
    path("<int:node_id>/drain/", nodes.node_drain, name="node_drain"),
    path("<int:node_id>/undrain/", nodes.node_undrain, name="node_undrain"),
    path("<int:node_id>/rotate/", nodes.node_rotate, name="node_rotate"),
    path("<int:node_id>/revoke/", nodes.node_revoke, name="node_revoke"),
]


def _entries(listed: str, prefix: str) -> list[URLPattern]:
    """Entries of the log, a project's or the server's own."""
    return [
        path("", audit.entries, name=listed),
        path("entries.jsonl", audit.entries_file, {"form": "jsonl"}, name=f"{prefix}_jsonl"),
        path("entries.csv", audit.entries_file, {"form": "csv"}, name=f"{prefix}_csv"),
        path("<int:entry_id>/entry.json", audit.entry_body, name=f"{prefix}_entry"),
        path("<int:entry_id>/proof", audit.entry_proof, name=f"{prefix}_proof"),
    ]


_runs = [
    path("runs/", list_rows.run_list, name="run_list"),
    path("runs/bulk/", list_actions.run_bulk, name="run_bulk"),
    path("runs/views/", list_actions.view_save, name="view_save"),
    path("runs/views/<int:view_id>/", list_actions.view_change, name="view_change"),
    path("runs/<int:run_id>/marks/", list_actions.run_marks, name="run_marks"),
    path("runs/new/", form.run_new, name="run_new"),
    path("runs/imported/", imported.imported_run_list, name="imported_run_list"),
    path("runs/imported/new/", imported.imported_run_new, name="imported_run_new"),
    path("runs/<int:run_id>/imported.json", imported.run_imported_statement, name="run_imported_statement"),
    path("runs/compare/", compare.run_compare, name="run_compare"),
    path("runs/compare/series.json", compare.run_compare_series, name="run_compare_series"),
    path("runs/compare/suite/", compare.run_compare_suite, name="run_compare_suite"),
    path("runs/compare/answers/", answers.run_compare_answers, name="run_compare_answers"),
    path("runs/estimates/<int:job_id>/", job_panels.run_estimate, name="run_estimate"),
    path("runs/previews/<int:job_id>/", job_panels.run_preview, name="run_preview"),
    path("runs/probes/<int:job_id>/", job_panels.run_probe, name="run_probe"),
    path("sweeps/", sweep_views.sweep_list, name="sweep_list"),
    path("sweeps/<int:sweep_id>/", sweep_views.sweep_detail, name="sweep_detail"),
    path("sweeps/<int:sweep_id>/cancel/", sweep_views.sweep_cancel, name="sweep_cancel"),
    path("pipelines/", pipelines.pipeline_list, name="pipeline_list"),
    path("pipelines/new/", pipelines.pipeline_new, name="pipeline_new"),
    path("pipelines/<int:pipeline_id>/", pipelines.pipeline_detail, name="pipeline_detail"),
    path("pipelines/<int:pipeline_id>/pipeline.yaml", pipelines.pipeline_file, name="pipeline_file"),
    path("pipelines/<int:pipeline_id>/start/", pipelines.pipeline_start, name="pipeline_start"),
    path("pipelines/<int:pipeline_id>/pause/", pipelines.pipeline_pause, name="pipeline_pause"),
    path("pipelines/<int:pipeline_id>/card/", pipelines.pipeline_card_make, name="pipeline_card_make"),
    path(
        "pipelines/<int:pipeline_id>/cards/<int:card_id>.zip",
        pipelines.pipeline_card_download,
        name="pipeline_card_download",
    ),
    path("pipelines/<int:pipeline_id>/stages/<slug:stage>/", pipelines.stage_detail, name="stage_detail"),
    path("pipelines/<int:pipeline_id>/stages/<slug:stage>/start/", pipelines.stage_start, name="stage_start"),
    path("pipelines/<int:pipeline_id>/stages/<slug:stage>/retry/", pipelines.stage_retry, name="stage_retry"),
    path("pipelines/<int:pipeline_id>/stages/<slug:stage>/again/", pipelines.stage_again, name="stage_again"),
    path("runs/<int:run_id>/", page.run_detail, name="run_detail"),
    path("runs/<int:run_id>/live/", page.run_live, name="run_live"),
    path("runs/<int:run_id>/series.json", page.run_series, name="run_series"),
    path("runs/<int:run_id>/charts/new/", own_charts.chart_new, name="chart_new"),
    path("runs/<int:run_id>/charts/<int:chart_id>/", own_charts.chart_edit, name="chart_edit"),
    path("runs/<int:run_id>/charts/<int:chart_id>/remove/", own_charts.chart_remove, name="chart_remove"),
    path("runs/<int:run_id>/evaluations/", page.run_evaluations, name="run_evaluations"),
    path("runs/<int:run_id>/evaluations/import/", actions.run_import, name="run_import"),
    path("runs/<int:run_id>/attempts/", page.run_attempts, name="run_attempts"),
    path("runs/<int:run_id>/logs/", logs.run_logs, name="run_logs"),
    path("runs/<int:run_id>/logs/more/", logs.run_logs_more, name="run_logs_more"),
    path("runs/<int:run_id>/log.txt", logs.run_log_file, name="run_log_file"),
    path("runs/<int:run_id>/config/", page.run_config, name="run_config"),
    path("runs/<int:run_id>/config.yaml", series.run_config_yaml, name="run_config_yaml"),
    path("runs/<int:run_id>/metrics.csv", series.run_metrics_csv, name="run_metrics_csv"),
    path("runs/<int:run_id>/events/", page.run_events, name="run_events"),
    path("runs/<int:run_id>/submit/", actions.run_submit, name="run_submit"),
    path("runs/<int:run_id>/cancel/", actions.run_cancel, name="run_cancel"),
    path("runs/<int:run_id>/pause/", actions.run_pause, name="run_pause"),
    path("runs/<int:run_id>/resume/", actions.run_resume, name="run_resume"),
    path("runs/<int:run_id>/retry/", retry.run_retry, name="run_retry"),
    path("runs/<int:run_id>/extend/", retry.run_extend, name="run_extend"),
    path("runs/<int:run_id>/priority/", actions.run_priority, name="run_priority"),
    path(_CHECKPOINT, checkpoint_page.checkpoint_detail, name="checkpoint_detail"),
    path(f"{_CHECKPOINT}pin/", actions.checkpoint_pin, name="checkpoint_pin"),
    path(f"{_CHECKPOINT}further/", checkpoint_page.checkpoint_further, name="checkpoint_further"),
    path(f"{_CHECKPOINT}reward/", reward_page.trained_reward_new, name="trained_reward_new"),
    path(f"{_CHECKPOINT}request/", checkpoint_page.checkpoint_wanted, name="checkpoint_request"),
    path(f"{_CHECKPOINT}checkpoint.zip", checkpoint_page.checkpoint_download, name="checkpoint_download"),
    path("runs/<int:run_id>/queues/new/", review_queues.queue_new, name="review_queue_new"),
    path("queues/", review_queues.queue_list, name="review_queue_list"),
    path("queues/labels/", review_queues.label_add, name="review_label_add"),
    path("queues/labels/<int:label_id>/remove/", review_queues.label_remove, name="review_label_remove"),
    path("queues/<int:queue_id>/", review_queues.queue_detail, name="review_queue"),
    path("queues/<int:queue_id>/next/", review_queues.queue_next, name="review_queue_next"),
    path("queues/<int:queue_id>/disagreements/", review_queues.queue_disagreements, name="review_disagreements"),
    path("queues/<int:queue_id>/<int:number>/", review_queues.queue_item, name="review_item"),
    path("queues/<int:queue_id>/<int:number>/judge/", review_queues.queue_judge, name="review_judge"),
    path("queues/<int:queue_id>/unblind/", review_queues.queue_unblind, name="review_unblind"),
    path("queue/", queue.queue, name="queue"),
    path("limits/", queue.limits, name="project_limits"),
    path("runs/<int:run_id>/samples/export/", samples_export, name="samples_export"),
    path("runs/<int:run_id>/problems/", problems.run_problems, name="run_problems"),
    path("runs/<int:run_id>/problems/<problem:key>/", problems.run_problem, name="run_problem"),
    path("runs/<int:run_id>/rescores/", rescores.run_rescores, name="run_rescores"),
    path("runs/<int:run_id>/rescores/<int:rescore_id>/", rescores.run_rescore, name="run_rescore"),
    path("runs/<int:run_id>/rescores/<int:rescore_id>/live/", rescores.run_rescore_live, name="run_rescore_live"),
    path("runs/<int:run_id>/groups/", review.run_groups, name="run_groups"),
    path("runs/<int:run_id>/samples/", samples.run_samples, name="run_samples"),
    path("runs/<int:run_id>/review/", run_review, name="run_review"),
    path("runs/<int:run_id>/samples/scatter/", scatter.run_scatter, name="run_scatter"),
    path("runs/<int:run_id>/review/preferences.jsonl", uses.preferences_download, name="preferences_download"),
    path("runs/<int:run_id>/review/dataset/", uses.preferences_dataset, name="preferences_dataset"),
    path("runs/<int:run_id>/groups/<int:group_id>/samples/<int:index>/use/", uses.sample_use, name="sample_use"),
    path("runs/<int:run_id>/groups/<int:group_id>/", review.group_detail, name="group_detail"),
    path(f"{_GROUP}/samples/<int:index>/", token_view.sample_tokens, name="sample_tokens"),
    path(f"{_GROUP}/samples/<int:index>/text/", review.sample_text, name="sample_text"),
    path("runs/<int:run_id>/groups/<int:group_id>/pairs/", pair_views.group_pairs, name="group_pairs"),
    path(
        "runs/<int:run_id>/groups/<int:group_id>/samples/<int:index>/judge/", judging.sample_judge, name="sample_judge"
    ),
]
_catalog = [
    path("models/", catalog.base_model_list, name="base_model_list"),
    path("models/new/", catalog.base_model_new, name="base_model_new"),
    path("models/<int:pk>/", catalog.base_model_detail, name="base_model_detail"),
    path("models/<int:pk>/archive/", catalog.base_model_archive, name="base_model_archive"),
    path("models/<int:pk>/pretraining/", catalog.base_model_pretraining, name="base_model_pretraining"),
    path("models/<int:pk>/doctor/", job_views.base_model_doctor, name="base_model_doctor"),
    path("models/<int:pk>/evaluate/", base_model_evaluate, name="base_model_evaluate"),
    path("datasets/", catalog.dataset_list, name="dataset_list"),
    path("datasets/new/", catalog.dataset_new, name="dataset_new"),
    path("datasets/task/", catalog.task_dataset_new, name="task_dataset_new"),
    path("datasets/<int:pk>/", catalog.dataset_detail, name="dataset_detail"),
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
    path("rewards/<int:pk>/probe-cases/<int:case_id>/remove/", uses.probe_case_removed, name="probe_case_remove"),
    path("rewards/<int:pk>/compare/", reward_views.verifier_compare, name="verifier_compare"),
]
_lab = [
    path("lab/", lab.lab_home, name="lab_home"),
    path("lab/draft/", lab.lab_draft, name="lab_draft"),
    path("lab/try/", lab.verifier_try, name="verifier_try"),
    path("lab/ask/", lab.lab_ask, name="lab_ask"),
    path("lab/chat/", chat.chat_home, name="chat_home"),
    path("lab/chat/<int:chat_id>/", chat.chat_detail, name="chat_detail"),
    path("lab/chat/<int:chat_id>/live/", chat.chat_live, name="chat_live"),
    path("lab/chat/<int:chat_id>/answers/<int:answer_id>/judge/", chat.chat_judge, name="chat_judge"),
    path("lab/chat/<int:chat_id>/answers/<int:answer_id>/probe-case/", uses.answer_case, name="answer_case"),
    path("lab/chat/<int:chat_id>/messages/<int:number>/suite/", chat.chat_suite_row, name="chat_suite_row"),
    path("lab/chat/<int:chat_id>/messages/<int:number>/delete/", chat.chat_redact, name="chat_redact"),
    path("lab/jobs/<int:job_id>/", job_views.lab_job, name="lab_job"),
    path("lab/jobs/<int:job_id>/live/", job_views.lab_job_live, name="lab_job_live"),
    path("lab/jobs/<int:job_id>/cancel/", job_views.lab_job_cancel, name="lab_job_cancel"),
    path("lab/jobs/<int:job_id>/result.json", job_views.lab_job_result, name="lab_job_result"),
    path("lab/jobs/<int:job_id>/groups/<int:at>/", job_views.lab_job_group, name="lab_job_group"),
    path("rewards/<int:pk>/lab/", lab.verifier_lab, name="verifier_lab"),
]
_alerts = [
    path("", desk.alert_list, name="alert_list"),
    path("answer/", desk.alerts_answer, name="alerts_answer"),
    path("<int:alert_id>/", desk.alert_detail, name="alert_detail"),
    path("rules/", rules.rule_list, name="alert_rule_list"),
    path("rules/new/", rules.rule_new, name="alert_rule_new"),
    path("rules/<int:rule_id>/", rules.rule_edit, name="alert_rule_edit"),
    path("rules/<int:rule_id>/remove/", rules.rule_remove, name="alert_rule_remove"),
    path("channels/", channels.channel_list, name="alert_channel_list"),
    path("channels/new/", channels.channel_new, name="alert_channel_new"),
    path("channels/<int:channel_id>/", channels.channel_edit, name="alert_channel_edit"),
    path("channels/<int:channel_id>/test/", channels.channel_test, name="alert_channel_test"),
    path("channels/<int:channel_id>/secret/", channels.channel_secret, name="alert_channel_secret"),
    path("channels/<int:channel_id>/remove/", channels.channel_remove, name="alert_channel_remove"),
]
_records = [
    path("records/", records.record_list, name="record_list"),
    path(f"{_RECORD}/card.zip", cards.card_download, name="card_download"),
    path(f"{_RECORD}/<int:end>/card.zip", cards.card_download, name="card_of_end"),
    path(f"{_RECORD}/<int:end>/<int:version>/card-<slug:audience>.zip", cards.card_download, name="card_for"),
    path(f"{_RECORD}/<int:end>/<int:version>/card-<slug:audience>.pdf", summaries.pdf_of_card, name="card_pdf"),
    path(
        f"{_RECORD}/<int:end>/<int:version>/summary-<slug:audience>.pdf", summaries.pdf_of_summary, name="summary_pdf"
    ),
    path(f"{_RECORD}/summary/", summaries.record_summary, name="record_summary"),
    path(f"{_RECORD}/<int:end>/summary/", summaries.record_summary, name="summary_of_end"),
    path(f"{_RECORD}/<int:end>/<int:version>/status/<str:name>", status_views.record_status, name="record_status"),
    path(
        f"{_RECORD}/<int:end>/<int:version>/evaluations-<slug:audience>.zip",
        evaluation_logs.evaluations_download,
        name="evaluations_for",
    ),
    path(f"{_RECORD}/verify.pyz", cards.verify_pyz, name="verify_pyz"),
    path(f"{_RECORD}/seal/", cards.record_request, name="record_request"),
    path(f"{_RECORD}/<int:end>/seal-version/", cards.version_seal, name="record_version_seal"),
    path("runs/<int:run_id>/statements/", statements.run_statements, name="run_statements"),
    path("standing-answers/", statements.standing_page, name="standing_answers"),
    path("runs/<int:run_id>/record/<int:end>/life/", after_seal.record_life, name="record_life"),
    path("runs/<int:run_id>/record/<int:end>/public/", after_seal.record_public, name="record_public"),
    path("records/compare/", diff.record_compare, name="record_compare"),
    path(
        f"{_RECORD}/<int:end>/<int:version>/training-content/", records.training_content_page, name="training_content"
    ),
    path(
        f"{_RECORD}/<int:end>/<int:version>/training-content.json",
        records.training_content_page,
        {"as_json": True},
        name="training_content_json",
    ),
    path("runs/<int:run_id>/record/", records.record_detail, name="record_detail"),
    path("runs/<int:run_id>/record/<int:end>/", records.record_detail, name="record_of_end"),
    path(f"{_GROUP}/samples/<int:index>/proof.json", traces.sample_proof, name="sample_proof"),
    path(f"{_GROUP}/redact/", traces.samples_redact_page, name="samples_redact"),
    path("retention/", traces.retention, name="retention"),
    path("policy/", policies.policy_page, name="policy_page"),
    path("policy/withdraw/", policies.policy_end, name="policy_end"),
    path("policy/<int:number>/", policies.policy_version, name="policy_version"),
    path("policy/<int:number>/policy.yaml", policies.policy_file, name="policy_file"),
]
# The signed heads of the log are open to anyone; only the server's own entries are not.
_log: list[URLPattern | URLResolver] = [
    path("", audit.log_page, name="log_page"),
    path("checkpoint", audit.log_checkpoint, name="log_checkpoint"),
    path("checkpoints", audit.log_checkpoints, name="log_checkpoints"),
    path("keys.json", audit.log_keys, name="log_keys"),
    path("model-signing.pub", audit.log_model_key, name="log_model_key"),
    path("model-signing/<slug:hint>.pub", audit.log_model_key, name="log_model_key_of"),
    path("server/", include(_entries("log_server", "log_server"))),
]

_project: list[URLPattern | URLResolver] = [
    *_accounts,
    path("nodes/", include(_nodes)),
    path("audit/", include(_entries("audit_list", "audit"))),
    path("alerts/", include(_alerts)),
    *_runs,
    *_catalog,
    *_lab,
    *_records,
]

urlpatterns: list[URLPattern | URLResolver] = [
    path("", accounts.home, name="home"),
    path("login/", accounts.SignIn.as_view(), name="login"),
    path("logout/", LogoutView.as_view(http_method_names=["post", "options"]), name="logout"),
    path("password/", accounts.PasswordChange.as_view(), name="password_change"),
    path("password/end-other-sessions/", accounts.other_sessions_end, name="other_sessions_end"),
    path("tokens/", api_tokens.token_list, name="api_token_list"),
    path("tokens/<int:token_id>/revoke/", api_tokens.token_revoke, name="api_token_revoke"),
    path("people/", include(_people)),
    path("invitations/<int:invitation_id>/", accounts.invitation_answer, name="invitation_answer"),
    path("projects/", accounts.project_list, name="project_list"),
    path("projects/new/", accounts.project_new, name="project_new"),
    path("p/<slug:slug>/", include(_project)),
    path("log/", include(_log)),
    path("verify/", verify_page.verify_page, name="verify_page"),
    path("verify/verify.pyz", verify_page.verify_pyz, name="verify_pyz"),
    path("status/<str:seal>.json", status_views.status_of_seal, name="status_of_seal"),
    path("c/<str:token>/", public_views.public_card_page, name="public_card"),
    path("c/<str:token>/card.zip", public_views.public_card_download, name="public_card_download"),
    path("c/<str:token>/card.pdf", public_views.public_card_pdf, name="public_card_pdf"),
    path("c/<str:token>/summary/", public_views.public_summary, name="public_summary"),
    path("c/<str:token>/summary.pdf", public_views.public_summary_pdf, name="public_summary_pdf"),
    path("api/worker/v1/", include("cohort.worker_api.urls")),
    path("api/v1/", include("cohort.api.urls")),
    path("healthz", accounts.healthz, name="healthz"),
    path("readyz", readiness.readyz, name="readyz"),
]
handler404 = readiness.not_found
handler500 = readiness.server_error
