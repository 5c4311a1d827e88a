"""Pages of the reward lab: what is asked for there, and what a job found. Who may is in tests/cases/access."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.catalog.models import BaseModel, PromptDataset, Verifier, VerifierVersion
from cohort.catalog.services import verifier_version_create
from cohort.lab.models import LabJob
from cohort.lab.services import job_ask
from tests.web.lab_rows import claimed, failed, finished, format_only, lab_node, probed, sampled
from tests.web.run_rows import HOSTILE_SHOWN

ClientFor = Callable[[User], Client]
PYTHON = {
    "components": [{"name": "own", "kind": "python", "params": {"source": "def verify(sample):\n    return 1.0\n"}}]
}
LAB = "/p/ours/lab"


def text_of(page: str) -> str:
    """What a person reads of the page's own part."""
    page = page[page.index('id="content"') :]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))


@pytest.fixture
def client(client_for: ClientFor, oscar: User) -> Client:
    return client_for(oscar)


@pytest.fixture
def job(oscar: User, verifier_version: VerifierVersion, dataset: PromptDataset, base_model: BaseModel) -> LabJob:
    """Four groups of four: all right, mixed, all wrong, and one with an error."""
    return sampled(verifier_version, oscar, dataset, base_model, groups=["rrrr", "rwxr", "xxxx", "rwwe"])


# ---------------------------------------------------------------- trying


@pytest.mark.parametrize(
    ("completion", "reward", "verdicts"),
    [
        ("<think>3+4</think><answer>7</answer>", "1.2", ["passed", "passed"]),
        ("<think>3+4</think><answer>8</answer>", "0.2", ["passed", "not passed"]),
        ("<answer>7</answer>", "1", ["not passed", "passed"]),
        ("seven", "0", ["not passed", "not passed"]),
    ],
)
def test_a_pasted_completion_is_scored_at_once(
    client: Client, verifier_version: VerifierVersion, completion: str, reward: str, verdicts: list[str]
) -> None:
    data = {"version": str(verifier_version.pk), "prompt": "3 + 4", "answer": "7", "completion": completion}
    for headers in ({"HX-Request": "true"}, {}):
        page = client.post(f"{LAB}/try/", data, headers=headers).content.decode()
        assert f"Reward <b>{reward}</b>" in page
        assert re.findall(r"</span>((?:not )?passed)</span>", page) == verdicts
        assert ("<html" in page) == (not headers)
    assert not LabJob.objects.exists()


def test_a_draft_is_tried_before_it_is_saved(client: Client, ours: Project) -> None:
    form = {"name": "", "on_error": "mask", "component-0-kind": "exact", "component-0-shown_kind": "exact"}
    form |= {"component-0-name": "answer", "component-0-weight": "2"}
    page = client.post(f"{LAB}/draft/", form).content.decode()
    spec = json.loads(re.search(r'name="spec" value="([^"]*)"', page)[1].replace("&quot;", '"'))  # type: ignore[index]
    sent = {"spec": json.dumps(spec), "answer": "7", "completion": "<answer>7</answer>"}
    assert "Reward <b>2</b>" in client.post(f"{LAB}/try/", sent).content.decode()
    again = client.post("/p/ours/rewards/new/", {"from_spec": json.dumps(spec)}).content.decode()
    assert 'name="component-0-weight" value="2.0"' in again
    faulty = form | {"component-0-kind": "regex", "component-0-shown_kind": "regex", "component-0-p_pattern": "(a"}
    assert client.post(f"{LAB}/draft/", faulty).status_code == 422
    assert not Verifier.objects.exists()


@pytest.mark.parametrize("sent", [{"version": "999"}, {"version": "x"}, {"spec": "{"}, {"spec": "{}"}, {}])
def test_what_no_page_of_ours_sends_is_404(client: Client, ours: Project, sent: dict[str, str]) -> None:
    assert client.post(f"{LAB}/try/", sent).status_code == 404
    assert client.post(f"{LAB}/ask/", sent | {"what": "probe"}).status_code == 404


def test_another_project_s_version_is_404(
    client_for: ClientFor, charlie: User, verifier_version: VerifierVersion
) -> None:
    sent = {"version": str(verifier_version.pk), "answer": "1", "completion": "1"}
    assert client_for(charlie).post("/p/theirs/lab/try/", sent).status_code == 404


def test_given_code_is_never_run_here_but_asked_for(client: Client, ours: Project, oscar: User) -> None:
    version = verifier_version_create(project=ours, actor=oscar, name="own", spec=PYTHON)
    sent = {"version": str(version.pk), "answer": "7", "completion": "7", "meta": '{"tests": [1]}'}
    assert client.post(f"{LAB}/try/", sent).status_code == 422, "no node is there that could keep it apart"
    lab_node()
    answer: Any = client.post(f"{LAB}/try/", sent)
    job = LabJob.objects.get()
    assert answer.url == f"{LAB}/jobs/{job.pk}/"
    assert (job.kind, job.needs_sandbox, job.created_by) == ("try", True, oscar)
    assert job.options["texts"] == [{"prompt": "", "answer": "7", "completion": "7", "meta": {"tests": [1]}}]


@pytest.mark.parametrize("meta", ["{", "[1]", "[" * 9999])
def test_further_fields_are_an_object(client: Client, verifier_version: VerifierVersion, meta: str) -> None:
    sent = {"version": str(verifier_version.pk), "answer": "7", "completion": "7", "meta": meta}
    response = client.post(f"{LAB}/try/", sent, headers={"HX-Request": "true"})
    assert 'id="id_meta_error"' in response.content.decode()


# ---------------------------------------------------------------- asking


def test_samples_rows_and_a_probe_are_asked_for(
    client: Client, verifier_version: VerifierVersion, dataset: PromptDataset, base_model: BaseModel
) -> None:
    ids = {"version": str(verifier_version.pk)}
    sample = {"sample-dataset": dataset.pk, "sample-base_model": base_model.pk, "sample-problems": 8}
    sample |= {"sample-group_size": 4, "sample-temperature": 0.7, "sample-top_p": 1, "sample-seed": 3}
    sample |= {"sample-max_completion_tokens": 64, "sample-template": "Q: {prompt}\nA:"}
    client.post(f"{LAB}/ask/", {**ids, "what": "sample", **sample})
    client.post(f"{LAB}/ask/", {**ids, "what": "rows", "rows-dataset": dataset.pk, "rows-rows": 5})
    client.post(f"{LAB}/ask/", {**ids, "what": "probe", "probe-dataset": "", "probe-problems": 9, "probe-seed": 1})
    made = {job.kind: job for job in LabJob.objects.all()}
    assert made["sample"].options == {
        **{"problems": 8, "group_size": 4, "temperature": 0.7, "top_p": 1.0},
        **{"max_completion_tokens": 64, "template": "Q: {prompt}\nA:", "seed": 3},
    }
    assert (made["sample"].base_model, made["sample"].dataset) == (base_model, dataset)
    assert (made["try"].options["rows"], made["try"].dataset) == (5, dataset)
    assert (made["probe"].options, made["probe"].dataset) == ({"problems": 9, "seed": 1}, None)
    assert all(job.version == verifier_version for job in made.values())


def test_what_cannot_be_asked_for_is_said_beside_its_field(
    client: Client, verifier_version: VerifierVersion, dataset: PromptDataset
) -> None:
    sent = {"version": str(verifier_version.pk), "what": "rows", "rows-dataset": dataset.pk, "rows-rows": "999999"}
    response = client.post(f"{LAB}/ask/", sent)
    assert response.status_code == 422
    assert 'id="id_rows-rows_error"' in response.content.decode()
    missing = client.post(f"{LAB}/ask/", sent | {"what": "sample", "sample-problems": "many"})
    assert {"base_model", "dataset", "problems"} <= set(missing.context["sample_form"].errors)
    assert not LabJob.objects.exists()


# ---------------------------------------------------------------- a job's page


def test_a_waiting_job_polls_and_can_be_called_off(
    client: Client, ours: Project, oscar: User, verifier_version: VerifierVersion
) -> None:
    job = job_ask(project=ours, actor=oscar, kind="probe", version=verifier_version, options={})
    address = f"{LAB}/jobs/{job.pk}/"
    seen = re.search(r"live/\?v=([^\"]*)", client.get(address).content.decode())
    assert seen is not None
    live = f"{address}live/?v={seen[1]}"
    assert client.get(live).status_code == 204
    claimed(job)
    assert client.get(live).status_code == 200
    client.post(f"{address}cancel/")
    job.refresh_from_db()
    assert job.cancel_asked


def test_a_job_that_has_ended_brings_the_page_anew(client: Client, job: LabJob) -> None:
    answer = client.get(f"{LAB}/jobs/{job.pk}/live/?v=x")
    assert (answer.status_code, answer.headers["HX-Refresh"]) == (286, "true")


def test_a_failed_job_says_why(client: Client, ours: Project, oscar: User, verifier_version: VerifierVersion) -> None:
    job = job_ask(project=ours, actor=oscar, kind="probe", version=verifier_version, options={})
    failed(job, "the folder tiny is not there", "Traceback <b>")
    page = client.get(f"{LAB}/jobs/{job.pk}/").content.decode()
    assert "the folder tiny is not there" in page
    assert "Traceback &lt;b&gt;" in page


def test_what_a_base_model_answered(client_for: ClientFor, bob: User, job: LabJob) -> None:
    """Rewards by hand: rrrr 4 × 1.2; rwxr 1.2, 0.2, 0, 1.2; xxxx 0; rww 1.2, 0.2, 0.2 and one without: 9 × 1.2 is not
    there, but 7 × 1.2 + 3 × 0.2 = 9 over 15 samples: 0.6."""
    page = client_for(bob).get(f"{LAB}/jobs/{job.pk}/").content.decode()
    text = text_of(page)
    for words in ("2 of 4 prompts", "all right 1", "mixed 2", "all wrong 1", "Mean reward 0.600", "Without a reward 1"):
        assert words in text
    bars = re.findall(r"<title>(\S+) to (\S+): (\d+) samples</title>", page)
    assert sum(int(count) for _, _, count in bars) == 15
    assert (bars[0], bars[-1][2]) == (("0", "0.0600", "5"), "7")
    cell = r'<td class="num">(\d+)\xa0%</td>'
    # format passes 11 of 16, is paid 0.2 × 11/16 = 0.1375 in the mean; answer 7 of 15, 7/15 = 0.4667
    assert re.findall(rf'{cell}<td class="num">[\d.]+</td>{cell}', page) == [("69", "23"), ("47", "77")]
    assert "1 × its own code raised" in text
    assert "looked at 18" in text
    assert HOSTILE_SHOWN in page
    assert "<script>alert(1)" not in page


def test_a_group_s_samples_are_browsed(client_for: ClientFor, bob: User, job: LabJob) -> None:
    client, address = client_for(bob), f"{LAB}/jobs/{job.pk}"
    page = client.get(f"{address}/groups/0/").content.decode()
    assert page.count("<article") == 4
    assert HOSTILE_SHOWN in page
    assert "<script>alert(1)" not in page
    assert f"{address}/groups/1/" in page
    assert client.get(f"{address}/groups/4/").status_code == 404
    result = client.get(f"{address}/result.json")
    assert result.json()["schema"] == "cohort-lab/1"
    assert "attachment" in result.headers["Content-Disposition"]


def test_a_probe_of_a_form_says_which_wrong_answers_it_pays(
    client_for: ClientFor, ours: Project, oscar: User, bob: User, dataset: PromptDataset
) -> None:
    version = format_only(ours, oscar)
    probe = probed(version, oscar, dataset)
    assert probe.verdict == "pays_wrong"
    page = client_for(bob).get(f"{LAB}/jobs/{probe.job_id}/").content.decode()
    assert all(f'id="class-{name}"' in page for name in probe.pays_wrong)
    reward = client_for(bob).get(f"/p/ours/rewards/{version.verifier_id}/").content.decode()
    assert f"{LAB}/jobs/{probe.job_id}/" in reward
    for text in (reward, client_for(bob).get(f"{LAB}/").content.decode()):
        assert "pays wrong answers" in text_of(text)


def test_rows_without_groups_show_their_answers(
    client: Client, ours: Project, oscar: User, verifier_version: VerifierVersion, job: LabJob
) -> None:
    options = {"texts": [{"completion": "x", "answer": "7"}]}
    other = job_ask(project=ours, actor=oscar, kind="try", version=verifier_version, options=options)
    finished(other, {**(job.result or {}), "kind": "try", "no_signal": None, "group_size": None})
    text = text_of(client.get(f"{LAB}/jobs/{other.pk}/").content.decode())
    assert "Answer scored" in text
    assert "no signal" not in text
