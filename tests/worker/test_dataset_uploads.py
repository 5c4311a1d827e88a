"""A sampled dataset is on the platform before its run ends, from where a cut left off; a run whose dataset never gets
through is tried again."""

from typing import Any

import pytest

from cohort.catalog.models import PromptDataset
from cohort.review.models import DatasetFile
from cohort.runs.models import Run
from tests.worker.conftest import Attempting, Site
from worker.platform_client.client import AttemptLink, Unreachable


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.platform_client.uploads.PART_BYTES", 5000)


@pytest.fixture
def run(site: Site) -> Run:
    run = site.launch()
    Run.objects.filter(pk=run.pk).update(kind="sample")
    return run


def test_the_dataset_is_in_the_catalog_when_the_run_has_ended(attempt: Attempting, run: Run) -> None:
    assert attempt("dataset", run=run).end() == ("finished", "ok")
    dataset = PromptDataset.objects.get(sampled_by=run)
    assert (dataset.name, dataset.content, dataset.problems) == (run.name, "conversations", 200)
    assert DatasetFile.objects.get(run=run).dataset == dataset


def test_it_goes_on_where_it_broke_off(attempt: Attempting, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets: list[int] = []
    send = AttemptLink.upload_dataset

    def cut_once(link: AttemptLink, sha256: str, *, offset: int, part: bytes) -> Any:
        if len(offsets) == 1 and part:
            offsets.append(-1)
            raise Unreachable("the line is cut")
        if part:
            offsets.append(offset)
        return send(link, sha256, offset=offset, part=part)

    monkeypatch.setattr(AttemptLink, "upload_dataset", cut_once)
    assert attempt("dataset", run=run).end() == ("finished", "ok")
    assert offsets[:3] == [0, -1, 5000]
    assert PromptDataset.objects.filter(sampled_by=run).count() == 1


def test_a_run_does_not_finish_without_its_dataset(
    attempt: Attempting, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(link: AttemptLink, sha256: str, *, offset: int, part: bytes) -> Any:
        raise Unreachable("the line is cut")

    monkeypatch.setattr(AttemptLink, "upload_dataset", never)
    begun = attempt("dataset", run=run, limits={"grace": 0.5, "silence": 1.0})
    assert begun.end() == ("failed", "not_answered")
    assert begun.run.state == "queued"
    assert (begun.folder / "dataset" / "rows.jsonl").exists()
