"""The card of a pipeline on the pipeline's page: what it lacks in words, the request, the making, the download."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.exceptions import ValidationError
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from cohort.background.tasks import launch_stages, make_pipeline_card
from cohort.base import artifacts
from cohort.catalog.models import DatasetContent
from cohort.evidence.verify import verify_card
from cohort.pipelines.models import Pipeline, PipelineStage
from cohort.pipelines.services import pipeline_create, pipeline_start, stage_change, stage_text
from cohort.records.models import PipelineCard, PipelineCardRequest, Record
from cohort.records.pipeline_requests import MOST_TRIES, pipeline_card_make, pipeline_card_request
from cohort.records.services import record_seal
from cohort.runs.models import Checkpoint, Run
from tests.browser import picture
from tests.factories import sealed_run, stage_runs
from tests.factories.runs import UNPROBED
from tests.factories.sealed_run import BEFORE
from tests.web.pages import html
from tests.web.records.conftest import World
from tests.web.records.records import logged, page_text, platform_keys
from tests.web.records.test_pipeline_card import TUNED
from tests.web.windows import GIVEN_UP, serious_faults, windows

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("quick_pdf")]
TEXT = """
name: small
stages:
  cold:
    kind: sft
    model: {path: tiny}
    data: {path: worked}
    eval: {path: held out, reward: r1 + exact@1, before: true, after: true}
    optim: {steps: 3, batch_size: 8}
  rl:
    model: {stage: cold}
    data: {path: additions}
    reward: r1 + exact@1
    eval: {path: held out}
    optim: {steps: 3}
    sampling: {group_size: 4, prompts_per_step: 2}
"""


@pytest.fixture
def pipeline(world: World) -> Pipeline:
    """base 30 % → cold 50 % → rl 80 %; cold has ended, and nothing else has."""
    assert world.heldout
    stage_runs.dataset_of(world.ours, "worked", DatasetContent.CONVERSATIONS, stage_runs.CONVERSATIONS)
    assert world.verifier_version
    pipeline = pipeline_create(project=world.ours, actor=world.oscar, text=TEXT)
    pipeline_start(pipeline=pipeline, actor=world.oscar, override=UNPROBED)
    run = run_of(pipeline, "cold")
    sealed_run.attempted(run, stage_runs.fine_tuned(run, before=BEFORE, after=TUNED, weights="1" * 64))
    return pipeline


@pytest.fixture
def complete(pipeline: Pipeline, launch_rl: Callable[[Pipeline], Run]) -> Pipeline:
    """Every stage has a sealed record."""
    record_seal(run=launch_rl(pipeline))
    return pipeline


@pytest.fixture
def launch_rl() -> Callable[[Pipeline], Run]:
    """Seals the first stage and trains the second, which has no record yet."""

    def launched(pipeline: Pipeline) -> Run:
        cold = record_seal(run=run_of(pipeline, "cold")).run
        Checkpoint.objects.filter(run=cold, final=True).update(stored_at=cold.created_at)
        launch_stages(cold.pk)
        run = run_of(pipeline, "rl")
        sealed_run.attempted(run, sealed_run.whole(run))
        return run

    return launched


def run_of(pipeline: Pipeline, slug: str) -> Run:
    current = PipelineStage.objects.select_related("current__run").get(pipeline=pipeline, slug=slug).current
    assert current is not None, slug
    return current.run


def shown(world: World, pipeline: Pipeline, who: str = "rita") -> str:
    return page_text(world.client(who).get(address(pipeline)))


def address(pipeline: Pipeline) -> str:
    return f"/p/ours/pipelines/{pipeline.pk}/"


BUTTON = "Make the pipeline’s card"


def test_the_page_says_which_stage_lacks_what(
    world: World, pipeline: Pipeline, launch_rl: Callable[[Pipeline], Run]
) -> None:
    page = shown(world, pipeline)
    assert "cold is running." in page
    assert "rl has not run yet." in page
    rl = launch_rl(pipeline)
    page = shown(world, pipeline)
    assert "cold is" not in page
    assert "rl is running." in page
    assert BUTTON not in page
    world.client("rita").post(f"{address(pipeline)}card/")
    assert not PipelineCardRequest.objects.exists()
    record_seal(run=rl)
    assert BUTTON in shown(world, pipeline)
    assert BUTTON not in shown(world, pipeline, "bob")
    row = PipelineStage.objects.select_related("pipeline").get(pipeline=pipeline, slug="rl")
    text = stage_text(row).replace("steps: 3", "steps: 4")
    stage_change(stage=row, actor=world.oscar, text=text, seen=row.pipeline.digest)
    page = shown(world, pipeline)
    assert "rl is out of date: its fields were changed." in page
    assert BUTTON not in page
    with pytest.raises(ValidationError, match="out of date"):
        pipeline_card_request(pipeline=pipeline, actor=world.rita)


def test_requested_made_and_taken_away(world: World, complete: Pipeline, tmp_path: Path) -> None:
    rita, bob = world.client("rita"), world.client("bob")
    version = rita.get(address(complete)).context["page"].version
    assert rita.post(f"{address(complete)}card/").status_code == 302
    request = PipelineCardRequest.objects.get()
    assert (request.by, request.waits) == (world.rita, True)
    (entry,) = logged("pipeline_card_requested")
    assert entry["data"]["stages"] == {
        slug: Record.objects.get(run=run_of(complete, slug)).seal for slug in ("cold", "rl")
    }
    rita.post(f"{address(complete)}card/")
    assert PipelineCardRequest.objects.count() == 1
    assert "A card is being made" in shown(world, complete)
    assert rita.get(address(complete), {"v": version}).status_code == 200

    for _ in range(2):  # a message may come twice
        make_pipeline_card(request.pk)
    card = PipelineCard.objects.get()
    assert (card.request, card.title, card.by) == (request, "small", world.rita)
    page = shown(world, complete, "bob")
    assert card.sha256 in html(bob.get(address(complete)))
    assert "rita" in page
    _, _, table = page.partition("What each stage changed")
    for line in ("+20.0 [+", "+30.0 [+", "+50.0 [+"):
        assert line in table

    response = bob.get(f"{address(complete)}cards/{card.pk}.zip")
    content = b"".join(response)  # type: ignore[call-overload]
    assert hashlib.sha256(content).hexdigest() == card.sha256
    assert response.headers["Content-Length"] == str(len(content))
    (path := tmp_path / "card.zip").write_bytes(content)
    report = verify_card(path, platform_keys())
    assert report.verdict == "accepted", report.why
    (entry,) = logged("pipeline_card_downloaded")
    assert entry["data"] == {"seal": card.seal, "sha256": card.sha256}
    assert entry["subject"] == f"pipeline:{complete.pk}"

    pipeline_card_request(pipeline=complete, actor=world.rita)  # another one, of the same records
    assert PipelineCardRequest.objects.count() == 2


def test_a_card_that_cannot_be_made_says_why(world: World, complete: Pipeline) -> None:
    request = pipeline_card_request(pipeline=complete, actor=world.rita)
    lost = Record.objects.get(run=run_of(complete, "cold")).card("public").artifact
    content = b"".join(artifacts.read_chunks(lost))
    artifacts.remove(lost)
    assert pipeline_card_make(request.pk) is None
    assert "not made: cold: the public card of its record is not there." in shown(world, complete)
    artifacts.put(lost, [content])
    assert pipeline_card_make(request.pk) is None, "it has ended"
    again = pipeline_card_request(pipeline=complete, actor=world.rita)
    PipelineCardRequest.objects.filter(pk=again.pk).update(tries=MOST_TRIES)
    assert pipeline_card_make(again.pk) is None
    assert not PipelineCard.objects.exists()
    assert f"ended {MOST_TRIES} times" in shown(world, complete)
    assert BUTTON in shown(world, complete)


@pytest.mark.slow
def test_the_card_in_a_browser(
    browser: Browser,
    live_server: LiveServer,
    world: World,
    pipeline: Pipeline,
    launch_rl: Callable[[Pipeline], Run],
    tmp_path: Path,
) -> None:
    """It appears without a reload; axe's rules before and after."""
    with windows(browser, live_server.url, meant=GIVEN_UP) as opened:
        page = opened(f"pipelines/{pipeline.pk}/")
        expect(page.locator("#card")).to_contain_text("rl has not run yet.")
        assert serious_faults(page, "lacking") == []
        picture(page, "pipeline-lacking")
        record_seal(run=launch_rl(pipeline))
        page.reload()
        page.get_by_role("button", name=BUTTON).click()
        expect(page.locator("#card")).to_contain_text("being made")
        make_pipeline_card(PipelineCardRequest.objects.get().pk)
        with page.expect_download() as download:
            page.locator("#card").get_by_role("link", name="Download").click()
        download.value.save_as(tmp_path / "card.zip")
        assert hashlib.sha256((tmp_path / "card.zip").read_bytes()).hexdigest() == PipelineCard.objects.get().sha256
        assert serious_faults(page, "made") == []
        picture(page, "pipeline-card")
