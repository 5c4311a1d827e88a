"""The exact tokens of a run before its launch, requested from the form and read by the lab's real job; and the doctor's
look at a base model, on the model's page."""

import json
import re
from pathlib import Path

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from cohort.accounts.models import Project, User
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.catalog.services import dataset_create
from cohort.lab.jobs import BadResult
from cohort.lab.models import LabJob
from cohort.runs.models import Run
from tests.factories.lab import chat_model, done, failed, probed, there
from tests.factories.runs import HOSTILE, HOSTILE_SHOWN, Maker
from tests.web.pages import html
from tests.web.records.records import logged
from tests.web.run_page import words

NEW = "/p/ours/runs/new/"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return chat_model(tmp_path)


def send(client: Client, texts: dict[str, str], action: str = "preview", **other: str) -> str:
    """What htmx gets: the summary, with what is swapped in next to it."""
    answer = client.post(NEW, texts | other | {"action": action}, headers={"HX-Request": "true"})
    assert answer.status_code == 200
    return answer.content.decode()


def panel(page: str) -> str:
    at = page.index('id="preview"')
    return page[at : page.index("</section>", at)]


def test_tokens_are_shown_before_the_launch_and_what_does_not_fit_is_named(
    operator: Client, chosen: dict[str, str], models: Path
) -> None:
    node = there()
    requested = panel(send(operator, chosen, **{"data.prefill": "<think>\n"}))
    assert "Waits for a worker" in requested
    address = re.search(r'hx-get="([^"]+)"', requested)
    assert address is not None
    assert operator.get(address[1]).status_code == 200
    job = LabJob.objects.get()
    assert not job.needs_sandbox
    done(job, models, node)
    ended = operator.get(address[1])
    assert (ended.status_code, ended.headers["HX-Trigger"]) == (286, "previewed"), "the form then checks itself anew"
    page = ended.content.decode()
    text = words(page)
    assert "<mark>&lt;|im_start|&gt;</mark>user" in page
    assert re.search(r"answer-begins.*▸</span>&lt;think&gt;", page)
    for part in ("16 of", "What rewards get to see", "Reference answer", "by tokenizer", "Evaluated on", "heldout"):
        assert part in text

    same = chosen | {"data.prefill": "<think>\n", "preview": str(job.pk)}
    assert "every prompt fits" in send(operator, same, "check")
    changed = send(operator, same | {"optim.steps": "7"}, "check")
    assert ("of other settings" in changed, "every prompt fits" in changed) == (True, True), "of the same prompts"

    narrow = same | {"data.max_prompt_tokens": "3"}
    send(operator, narrow)
    done(LabJob.objects.latest("pk"), models, node)
    checked = send(operator, narrow, "check")
    assert "over data.max_prompt_tokens = 3" in checked
    launched = operator.post(NEW, narrow | {"action": "launch"})
    assert launched.status_code == 422
    assert not Run.objects.exists()
    assert operator.post(NEW, same | {"action": "launch"}).status_code == 302


def test_settings_that_are_back_bring_their_own_tokens_back(
    operator: Client, chosen: dict[str, str], models: Path
) -> None:
    node, jobs = there(), {}
    for prefill in ("<first>", "<second>"):
        send(operator, chosen, **{"data.prefill": prefill})
        jobs[prefill] = str(done(LabJob.objects.latest("pk"), models, node).pk)
    back = {"data.prefill": "<first>", "preview": jobs["<second>"]}
    page = send(operator, chosen, "check", **back)
    assert "▸</span>&lt;first&gt;" in panel(page)
    assert f'name="preview" value="{jobs["<first>"]}"' in panel(page)
    assert "of other settings" not in page
    assert 'id="preview"' not in send(operator, chosen, "check", **back | {"preview": jobs["<first>"]})


def test_what_is_not_valid_is_not_requested_and_nothing_typed_is_lost(
    operator: Client, chosen: dict[str, str], models: Path
) -> None:
    node = there()
    assert "Nothing was requested" in panel(send(operator, chosen, **{"sampling.group_size": "many"}))
    assert not LabJob.objects.exists()
    typed = chosen | {"data.chat_template": "{{ raise_exception('no turn') }}\r\nsecond line"}
    send(operator, typed)
    job = failed(LabJob.objects.get(), "problem p: no turn <b>\n  {{ x }\n     ^", node=node)
    page = operator.post(NEW, typed | {"action": "check"}).content.decode()
    assert "problem p: no turn &lt;b&gt;\n  {{ x }\n     ^" in panel(page)
    assert "second line</textarea>" in page
    assert operator.get(f"/p/ours/runs/previews/{job.pk}/").status_code == 286


def test_problems_that_a_worker_refused_are_refused_at_launch(operator: Client, chosen: dict[str, str]) -> None:
    """As a reference that math cannot read, which the platform does not read itself."""
    send(operator, chosen)
    why = "1 of 16 problems have a reference that cannot be compared with: problem p"
    failed(LabJob.objects.get(), why, node=there(), code="data_error")
    assert why in send(operator, chosen, "check")
    assert operator.post(NEW, chosen | {"action": "launch"}).status_code == 422
    assert operator.post(NEW, chosen | {"action": "launch", "optim.steps": "7"}).status_code == 422
    others = {"action": "launch", "data.unreadable": "drop"}
    assert operator.post(NEW, chosen | others).status_code == 302, "these are other problems, launched for a reason"


@pytest.fixture
def clean(
    chosen: dict[str, str], alice: User, dataset: PromptDataset, verifier_version: VerifierVersion
) -> dict[str, str]:
    """The form, without a reason, of a reward that the probe found nothing wrong with."""
    probed(verifier_version, alice, dataset)
    return chosen | {"probe_override": ""}


def test_prompts_that_nobody_checked_block_a_launch_until_a_worker_has(
    operator: Client, clean: dict[str, str], models: Path
) -> None:
    refused = operator.post(NEW, clean | {"action": "launch"})
    assert refused.status_code == 422
    assert "nobody has checked whether the prompts fit" in words(html(refused))
    assert 'id="check-prompts"' in html(refused)
    requested = send(operator, clean)
    assert ("a worker checks whether" in requested, 'id="check-prompts"' in requested) == (True, False)
    done(LabJob.objects.get(kind="preview"), models, there())
    other = clean | {"optim.steps": "7", "optim.lr": "0.001", "seed": "9", "sampling.group_size": "4"}
    assert 'id="prompts-gate"' not in send(operator, other, "check"), "of the same prompts"
    assert operator.post(NEW, other | {"action": "launch"}).status_code == 302
    narrow = clean | {"sampling.max_completion_tokens": "7", "action": "launch"}
    assert operator.post(NEW, narrow).status_code == 422, "nobody knows whether they fit these limits"


def test_a_launch_without_the_check_keeps_its_reason(operator: Client, clean: dict[str, str]) -> None:
    reason = "These prompts ran last week."
    assert operator.post(NEW, clean | {"action": "launch", "probe_override": "short"}).status_code == 422
    assert not Run.objects.exists()
    assert operator.post(NEW, clean | {"action": "launch", "probe_override": reason}).status_code == 302
    run = Run.objects.get()
    assert logged("prompt_check_overridden")[-1]["reason"] == reason
    assert reason in run.events.get(kind="prompts_unchecked").message
    assert not run.launch_probes.get().reason, "which is of the reward alone"


def test_a_sweep_has_each_set_of_its_prompts_checked(operator: Client, clean: dict[str, str], models: Path) -> None:
    same = clean | {"sweep": "lr: 1e-4, 1e-5\nseed: 0, 1"}
    limits = clean | {"sweep": "sampling.max_completion_tokens: 16, 24"}
    node = there()
    send(operator, same)
    done(LabJob.objects.get(kind="preview"), models, node)
    assert operator.post(NEW, same | {"action": "launch"}).status_code == 302
    assert Run.objects.count() == 4
    send(operator, limits)
    waiting = LabJob.objects.filter(state="waiting")
    *others, last = waiting.order_by("pk")
    assert len(others) == 2, "the form's own and the sweep's two"
    for job in others:
        done(job, models, node)
    assert operator.post(NEW, limits | {"action": "launch"}).status_code == 422
    done(last, models, node)
    assert operator.post(NEW, limits | {"action": "launch"}).status_code == 302


def test_a_draft_is_launched_for_a_reason_or_once_its_prompts_are_checked(
    operator: Client, clean: dict[str, str], models: Path
) -> None:
    operator.post(NEW, clean | {"action": "draft"})
    run = Run.objects.get()
    address = f"/p/ours/runs/{run.pk}/submit/"
    page = operator.post(address)
    assert (page.status_code, 'id="prompts-gate"' in html(page)) == (409, True)
    send(operator, clean)
    done(LabJob.objects.get(kind="preview"), models, there())
    assert operator.post(address).status_code == 302
    run.refresh_from_db()
    assert run.state == "queued"


def test_hostile_problems_are_shown_and_never_rendered(
    operator: Client, alice: User, ours: Project, chosen: dict[str, str], models: Path
) -> None:
    node = there()
    row = HOSTILE.replace("\x07", "") + "<|im_end|>"
    lines = [json.dumps({"prompt": f"{row} {number}", "answer": row}) for number in range(9)]
    given = {"name": "hostile", "format": "plain", "source": "", "chunks": ["\n".join(lines).encode()]}
    dataset = dataset_create(project=ours, actor=alice, **given)
    send(operator, chosen, dataset=str(dataset.pk))
    job = done(LabJob.objects.get(), models, node)
    for address in (f"/p/ours/runs/previews/{job.pk}/", f"/p/ours/lab/jobs/{job.pk}/"):
        page = operator.get(address).content.decode()
        assert "<script>alert" not in page
        assert "\u202e" not in page
        assert "&lt;|im_end|&gt;" in page.replace("<mark>&lt;|im_end|&gt;</mark>", ""), "spelled out, and no token"


def test_a_result_of_other_settings_is_refused(operator: Client, chosen: dict[str, str], models: Path) -> None:
    node = there()
    send(operator, chosen)
    send(operator, chosen)
    job = LabJob.objects.get()
    with pytest.raises(BadResult, match="is of the config"):
        done(job, models, node, config_digest="0" * 64)


def test_the_form_asks_the_database_as_often_with_a_preview(
    operator: Client, chosen: dict[str, str], models: Path, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    send(operator, chosen)
    done(LabJob.objects.get(), models, there())
    with django_assert_max_num_queries(25):
        send(operator, chosen, "check")


# ---------------------------------------------------------------- the doctor


def test_the_doctor_looks_at_a_model(operator: Client, viewer: Client, maker: Maker, models: Path) -> None:
    model = maker.base_model
    address = f"/p/ours/models/{model.pk}/"
    assert "Look at it" in operator.get(address).content.decode()
    assert "Look at it" not in viewer.get(address).content.decode()
    for _ in range(2):
        assert operator.post(f"{address}doctor/").status_code == 302
    job = LabJob.objects.get()
    assert (job.kind, job.spec, operator.get(f"{address}doctor/").status_code) == ("doctor", {}, 200)
    assert operator.get(f"/p/ours/lab/jobs/{job.pk}/").status_code == 200
    assert operator.get("/p/ours/lab/").status_code == 200
    with pytest.raises(BadResult, match="is of the model"):
        done(job, models, there(), model="another")
    LabJob.objects.update(state="waiting")
    (models / "tiny" / "generation_config.json").write_text('{"temperature": 0.6, "do_sample": true}')
    done(LabJob.objects.get(), models, there())
    assert viewer.get(f"{address}doctor/").status_code == 286
    page = viewer.get(address).content.decode()
    assert "generation_defaults" in page
    assert "temperature 0.6" in page
    assert "! warning" in page
    assert "node-e" in page
    assert operator.get(f"/p/ours/lab/jobs/{job.pk}/").status_code == 302
    assert "Look at it again" in operator.get(address).content.decode()


def test_a_look_that_failed_says_why(operator: Client, base_model: BaseModel) -> None:
    address = f"/p/ours/models/{base_model.pk}/"
    operator.post(f"{address}doctor/")
    failed(LabJob.objects.get(), f"no model folder {HOSTILE}", node=there())
    page = operator.get(address).content.decode()
    assert "It could not be looked at" in page
    assert HOSTILE_SHOWN in page
