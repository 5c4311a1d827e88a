"""The pages of pipelines: from a preset to a picture, and a stage that is changed and run again."""

from collections.abc import Callable

import pytest
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.background.tasks import launch_stages
from cohort.pipelines import services
from cohort.pipelines.models import Pipeline
from cohort.runs.models import Run
from grpo_core.pipeline.presets import pipeline_presets
from tests.factories.pipelines import TEXT, run_of, states
from tests.factories.runs import UNPROBED, Maker, add_evaluation
from tests.web.pages import html
from tests.web.run_page import queries

LIST = "/p/ours/pipelines/"

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("maker")]


def test_from_preset_to_picture(operator: Client, viewer: Client) -> None:
    page = html(operator.get(f"{LIST}new/?preset=deepseek-r1"))
    assert all(preset.name in page for preset in pipeline_presets())
    assert "name: deepseek-r1" in page
    refused = operator.post(f"{LIST}new/", {"text": TEXT.replace("path: tiny", "path: absent")})
    assert refused.status_code == 422
    assert "Line 11: stages.first.model.path" in html(refused)
    made = operator.post(f"{LIST}new/", {"text": TEXT})
    pipeline = Pipeline.objects.get()
    assert made.headers["Location"] == f"{LIST}{pipeline.pk}/"
    operator.post(f"{LIST}{pipeline.pk}/start/", {"override": UNPROBED})
    page = html(viewer.get(f"{LIST}{pipeline.pk}/"))
    assert "<svg" in page
    assert f"/p/ours/runs/{run_of(pipeline, 'first').pk}/" in page
    assert f"{LIST}{pipeline.pk}/start/" not in page  # a viewer starts nothing
    assert "two" in html(viewer.get(LIST))


def test_the_page_polls_and_shows_scores(
    viewer: Client, started: Pipeline, maker: Maker, succeed: Callable[..., Run]
) -> None:
    address = f"{LIST}{started.pk}/"
    version = viewer.get(address).context["page"].version
    assert viewer.get(address, {"v": version}).status_code == 204
    run = succeed(started, "first")
    attempt = run.attempts.get()
    add_evaluation(attempt, "before", [0, 0, 0, 1])
    add_evaluation(attempt, "after", [1, 0, 1, 1])
    polled = viewer.get(address, {"v": version})
    assert polled.status_code == 200
    assert "<html" not in polled.content.decode()
    assert "held-out 25 % → 75 %" in html(polled)


def test_a_stage_is_changed_and_run_again_on_its_page(
    operator: Client, viewer: Client, started: Pipeline, succeed: Callable[..., Run]
) -> None:
    succeed(started, "first")
    address = f"{LIST}{started.pk}/stages/first/"
    page = operator.get(address)
    form = page.context["form"]
    sent = {"text": form.initial["text"].replace("steps: 10", "steps: none"), "seen": form.initial["seen"]}
    assert "optim.steps" in html(operator.post(address, sent))
    sent["text"] = sent["text"].replace("steps: none", "steps: 12")
    assert operator.post(address, sent).status_code == 302
    assert states(started)["first"] == "out_of_date"
    assert "steps: 12" in html(viewer.get(address))
    assert operator.post(f"{address}again/").status_code == 302
    assert run_of(started, "first").steps_total == 12


def test_queries_do_not_grow_with_stages(
    viewer: Client, started: Pipeline, ours: Project, oscar: User, succeed: Callable[..., Run]
) -> None:
    two, copies = TEXT.partition("stages:\n")[2], ""
    for number in range(4):
        copy = two.replace("  first:", f"  first{number}:").replace("  second:", f"  second{number}:")
        copies += copy.replace("stage: first", f"stage: first{number}")
    text = TEXT.replace("name: two", "name: ten") + copies
    large = services.pipeline_create(project=ours, actor=oscar, text=text)
    services.pipeline_start(pipeline=large, actor=oscar, override=UNPROBED)
    assert large.stages.exclude(current=None).count() == 5
    viewer.get(f"{LIST}{started.pk}/")
    few, many = (queries(lambda pk=row.pk: viewer.get(f"{LIST}{pk}/")) for row in (started, large))
    assert few == many


def test_queries_do_not_grow_with_stages_that_finished(
    viewer: Client, ours: Project, oscar: User, succeed: Callable[..., Run]
) -> None:
    two = TEXT.partition("stages:\n")[2]

    def chain(name: str, more: int) -> Pipeline:
        """`more` stages begin from the same first one; all have finished and were evaluated."""
        copies = "".join(two.partition("  first:")[0].replace("  second:", f"  second{k}:") for k in range(more))
        text = TEXT.replace("name: two", f"name: {name}") + copies
        pipeline = services.pipeline_create(project=ours, actor=oscar, text=text)
        services.pipeline_start(pipeline=pipeline, actor=oscar, override=UNPROBED)
        for slug in pipeline.parsed_config.order:
            run = succeed(pipeline, slug)
            add_evaluation(run.attempts.get(), "before", [0, 0, 0, 1])
            add_evaluation(run.attempts.get(), "after", [1, 0, 1, 1])
            launch_stages(run.pk)
        return pipeline

    small, large = chain("few", 0), chain("many", 3)
    page = html(viewer.get(f"{LIST}{large.pk}/"))
    assert page.count("beginning to end") == 4  # second, second0, second1, second2
    few, many = (queries(lambda pk=row.pk: viewer.get(f"{LIST}{pk}/")) for row in (small, large))
    assert few == many


def test_a_finished_pipeline_has_nothing_to_start_or_pause(
    operator: Client, started: Pipeline, succeed: Callable[..., Run]
) -> None:
    address = f"{LIST}{started.pk}/"
    assert f"{address}pause/" in html(operator.get(address))
    for slug in started.parsed_config.order:
        run = succeed(started, slug)
        launch_stages(run.pk)
    page = html(operator.get(address))
    assert "finished" in page
    assert f"{address}pause/" not in page
    assert f"{address}start/" not in page
