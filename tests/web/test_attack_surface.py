"""The attack surface of a learned reward on its pages: attacks of a probe, and a best-of-n from its form to its page,
with real classifiers and a real model. Who may is in tests/cases/access."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer
from transformers import LlamaForSequenceClassification

from cohort.accounts.models import Project, User
from cohort.audit.models import AuditEntry
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.catalog.services import verifier_version_create
from cohort.lab.gate import gate
from cohort.lab.jobs import BadResult, job_config
from cohort.lab.models import LabJob
from cohort.lab.services import job_request
from grpo_core.errors import ConfigError
from grpo_core.lab.best_of_n import BestOfN, parting_text
from grpo_core.lab.job import Job
from grpo_core.probe.cases.attacks import ATTACKS
from tests.browser import picture
from tests.core.rewards.classifiers import save_counting
from tests.core.tiny import tiny_folder
from tests.factories.lab import done
from tests.web.pages import html
from tests.web.test_lab_pages import LAB, text_of
from tests.web.windows import serious_faults, windows

pytestmark = pytest.mark.django_db

OPTIONS = {"problems": 8, "group_size": 8, "max_completion_tokens": 2}


def one(kind: str, **params: Any) -> dict[str, Any]:
    return {"components": [{"name": "only", "kind": kind, "params": params}]}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A worker's folder with the base model and a classifier that rewards length alone."""
    save_counting(tmp_path / "length", LlamaForSequenceClassification, head=-1.0, positions=4096)
    tiny_folder(tmp_path / "tiny")
    return tmp_path


@pytest.fixture
def learned(ours: Project, oscar: User) -> VerifierVersion:
    spec = one("reward_model", path="length", template="{completion}!")
    return verifier_version_create(project=ours, actor=oscar, name="long", spec=spec)


@pytest.fixture
def truth(ours: Project, oscar: User) -> VerifierVersion:
    spec = one("regex", pattern="[ -;=-~]*", match="all")
    return verifier_version_create(project=ours, actor=oscar, name="plain", spec=spec)


@pytest.fixture
def job(
    ours: Project,
    oscar: User,
    learned: VerifierVersion,
    truth: VerifierVersion,
    dataset: PromptDataset,
    base_model: BaseModel,
) -> LabJob:
    return job_request(
        project=ours,
        actor=oscar,
        kind="best_of_n",
        version=learned,
        ground_truth=truth,
        dataset=dataset,
        base_model=base_model,
        options=OPTIONS,
    )


def test_a_best_of_n_is_asked_for_with_what_is_taken_for_the_truth(
    operator: Client, learned: VerifierVersion, truth: VerifierVersion, dataset: PromptDataset, base_model: BaseModel
) -> None:
    sent = {"version": learned.pk, "what": "best", "best-dataset": dataset.pk, "best-base_model": base_model.pk}
    numbers = {**OPTIONS, "temperature": 1, "top_p": 1, "seed": 3, "template": "{prompt}", "chat": "auto"}
    sent |= {f"best-{name}": value for name, value in numbers.items()}
    refused = operator.post(f"{LAB}/ask/", sent)
    assert refused.status_code == 422
    assert set(refused.context["best_form"].errors) == {"ground_truth"}
    assert 'id="id_best-ground_truth_error"' in html(refused)
    few: Any = operator.post(f"{LAB}/ask/", sent | {"best-ground_truth": truth.pk, "best-problems": 7})
    assert set(few.context["best_form"].errors) == {"problems"}
    operator.post(f"{LAB}/ask/", sent | {"best-ground_truth": truth.pk})
    job = LabJob.objects.get()
    assert (job.kind, job.version, job.ground_truth, job.base_model) == ("best_of_n", learned, truth, base_model)
    assert (job.options["problems"], job.options["group_size"], job.options["seed"]) == (8, 8, 3)
    entry = json.loads(bytes(AuditEntry.objects.get(kind="lab_job_asked").body))
    assert entry["after"]["ground_truth"] == truth.pk
    given = Job.model_validate(job_config(job))
    assert given.verifier is not None
    assert given.verifier.components[0].kind == "regex"


def test_what_a_best_of_n_needs_is_named(
    ours: Project,
    oscar: User,
    learned: VerifierVersion,
    truth: VerifierVersion,
    dataset: PromptDataset,
    base_model: BaseModel,
    charlie: User,
) -> None:
    theirs = charlie.memberships.get().project
    foreign = verifier_version_create(project=theirs, actor=charlie, name="plain", spec=truth.spec)
    reads = verifier_version_create(project=ours, actor=oscar, name="reads", spec=one("exact", column="reference"))

    def faults(**more: Any) -> list[str]:
        rows = {"dataset": dataset, "base_model": base_model, "ground_truth": truth} | more
        with pytest.raises(ConfigError) as error:
            job_request(project=ours, actor=oscar, kind="best_of_n", version=learned, options=OPTIONS, **rows)
        return [problem.path for problem in error.value.problems]

    assert faults(dataset=None, base_model=None, ground_truth=None) == ["dataset", "base_model", "ground_truth"]
    assert faults(ground_truth=foreign) == ["ground_truth"]
    assert faults(ground_truth=reads) == ["dataset"]
    assert not LabJob.objects.exists()


def test_its_page_has_the_sentence_both_curves_and_every_number(viewer: Client, job: LabJob, home: Path) -> None:
    page = f"{LAB}/jobs/{job.pk}/"
    assert "Best of n by a reward" in html(viewer.get(page))
    done(job, home)
    shown = html(viewer.get(page))
    result = BestOfN.model_validate(job.result)
    text = text_of(shown)
    assert parting_text(result).replace("'", "’") in text.replace("&#x27;", "’")
    assert shown.count("<polyline") == 2
    assert shown.count('class="bar"') == 2 * len(result.points)
    assert [point.n for point in result.points] == [1, 2, 4, 8]
    assert ('class="parted"' in shown) == (result.parting.n is not None)
    assert "plain" in text
    assert json.loads(b"".join(viewer.get(f"{page}result.json").streaming_content)) == job.result  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"verifier_digest": "0" * 64}, "other_verifier"),
        ({"rubric_digest": "0" * 64}, "other_reward"),
        ({"model": "another"}, "other_model"),
        ({"points": []}, "not_valid"),
    ],
)
def test_a_result_of_something_else_is_refused(job: LabJob, home: Path, changed: dict[str, Any], code: str) -> None:
    with pytest.raises(BadResult) as refused:
        done(job, home, **changed)
    assert refused.value.code == code
    job.refresh_from_db()
    assert job.result is None


def test_the_attacks_of_a_probe_are_shown_and_block_a_run(
    viewer: Client, ours: Project, oscar: User, learned: VerifierVersion, home: Path
) -> None:
    job = done(job_request(project=ours, actor=oscar, kind="probe", version=learned, options={"problems": 3}), home)
    page = html(viewer.get(f"{LAB}/jobs/{job.pk}/"))
    text = text_of(page)
    part = text[text.index("Attacks on the learned reward") :]
    assert all(f'href="#class-{name}"' in page for name in ATTACKS)
    assert "keyword stuffing: the words of the prompt, three times" in part
    assert "3 of 3" in part
    assert "refused" in part[: part.index("Wrong answers")], "a text over the limit"
    assert "Its model reads 4,096 tokens" in part
    assert "Spearman’s ρ" in part
    known = gate(learned, None)
    assert (known.state, known.held) == ("pays_wrong", True)
    assert "very_long" in known.pays_wrong
    assert "as high as right answers" in known.text


@pytest.mark.slow
def test_both_pages_in_a_browser(
    browser: Browser,
    transactional_db: None,
    ours: Project,
    alice: User,
    learned: VerifierVersion,
    job: LabJob,
    home: Path,
    live_server: LiveServer,
) -> None:
    """Readable by axe's rules in both themes, and on a phone nothing reaches beyond its edge."""
    done(job, home)
    probe = done(job_request(project=ours, actor=alice, kind="probe", version=learned, options={"problems": 8}), home)
    pages = {
        "best-of-n": f"lab/jobs/{job.pk}/",
        "learned-probe": f"lab/jobs/{probe.pk}/",
        "lab-best-of-n": f"rewards/{learned.verifier_id}/lab/",
    }
    with windows(browser, live_server.url) as opened:
        for name, path in pages.items():
            page = opened(path)
            expect(page.locator("h1")).to_be_visible()
            picture(page, name)
            assert serious_faults(page, name) == []
            page.set_viewport_size({"width": 360, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, name
