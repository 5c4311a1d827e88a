"""Pages of the reward lab: what is asked for there, what a job found, what they draw and compare, and the hold-back: a
reward known to pay wrong answers launches only for a reason. Who may is in tests/cases/access.
"""

import json
import re
from typing import Any

import pytest
from django.db import DatabaseError, transaction
from django.test import Client

from cohort.accounts.models import Project, User
from cohort.audit.models import AuditEntry
from cohort.catalog.models import BaseModel, PromptDataset, Verifier, VerifierVersion
from cohort.catalog.services import verifier_version_create
from cohort.lab.gate import gate, launch_of
from cohort.lab.models import LabJob, LaunchProbe, VerifierProbe
from cohort.lab.services import job_request
from cohort.launch.creation import run_create, run_submit
from cohort.runs.models import Run
from cohort.web.lab.charts import histogram_drawn, interval_drawn
from cohort.web.templatetags.cohort import call_time
from grpo_core.config.prompt import PromptConfig
from grpo_core.errors import ConfigError
from tests.factories.lab import claimed, failed, finished, format_only, lab_node, probed, sampled
from tests.factories.runs import HOSTILE, HOSTILE_SHOWN, Maker, dataset_copies
from tests.web.control import fresh
from tests.web.pages import html

PYTHON = {
    "components": [{"name": "own", "kind": "python", "params": {"source": "def verify(sample):\n    return 1.0\n"}}]
}
LAB = "/p/ours/lab"


def text_of(page: str) -> str:
    """What a person reads of the page's own part."""
    page = page[page.index('id="content"') :]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))


@pytest.fixture
def job(oscar: User, verifier_version: VerifierVersion, dataset: PromptDataset, base_model: BaseModel) -> LabJob:
    """Four groups of four: all right, mixed, all wrong, and one with an error."""
    return sampled(verifier_version, oscar, dataset, base_model, groups=["rrrr", "rwxr", "xxxx", "rwwe"])


# ---------------------------------------------------------------- trying


def test_a_pasted_completion_is_scored_at_once(operator: Client, verifier_version: VerifierVersion) -> None:
    sent = {"version": str(verifier_version.pk), "prompt": "3 + 4", "answer": "7", "completion": "<answer>7</answer>"}
    for headers in ({"HX-Request": "true"}, {}):
        page = html(operator.post(f"{LAB}/try/", sent, headers=headers))
        assert "Reward <b>1</b>" in page
        assert re.findall(r"</span>((?:not )?passed)</span>", page) == ["not passed", "passed"]
        assert ("<html" in page) == (not headers)
    for meta in ("{", "[1]", "[" * 9999):  # further fields are an object
        response = operator.post(f"{LAB}/try/", sent | {"meta": meta}, headers={"HX-Request": "true"})
        assert 'id="id_meta_error"' in html(response)
    assert not LabJob.objects.exists()


def test_a_draft_is_tried_before_it_is_saved(operator: Client, ours: Project) -> None:
    form = {"name": "", "on_error": "mask", "component-0-kind": "exact", "component-0-shown_kind": "exact"}
    form |= {"component-0-name": "answer", "component-0-weight": "2"}
    page = html(operator.post(f"{LAB}/draft/", form))
    spec = json.loads(re.search(r'name="spec" value="([^"]*)"', page)[1].replace("&quot;", '"'))  # type: ignore[index]
    sent = {"spec": json.dumps(spec), "answer": "7", "completion": "<answer>7</answer>"}
    assert "Reward <b>2</b>" in html(operator.post(f"{LAB}/try/", sent))
    again = html(operator.post("/p/ours/rewards/new/", {"from_spec": json.dumps(spec)}))
    assert 'name="component-0-weight" value="2"' in again
    faulty = form | {"component-0-kind": "regex", "component-0-shown_kind": "regex", "component-0-p_pattern": "(a"}
    assert operator.post(f"{LAB}/draft/", faulty).status_code == 422
    assert not Verifier.objects.exists()


def test_what_no_page_sends_and_another_project_s_version_are_404(
    operator: Client, stranger: Client, verifier_version: VerifierVersion
) -> None:
    for sent in ({"version": "999"}, {"version": "x"}, {"spec": "{"}, {"spec": "{}"}, {}):
        assert operator.post(f"{LAB}/try/", sent).status_code == 404
        assert operator.post(f"{LAB}/ask/", sent | {"what": "probe"}).status_code == 404
    foreign = {"version": str(verifier_version.pk), "answer": "1", "completion": "1"}
    assert stranger.post("/p/theirs/lab/try/", foreign).status_code == 404


def test_given_code_is_never_run_here_but_asked_for(operator: Client, ours: Project, oscar: User) -> None:
    version = verifier_version_create(project=ours, actor=oscar, name="own", spec=PYTHON)
    sent = {"version": str(version.pk), "answer": "7", "completion": "7", "meta": '{"tests": [1]}'}
    assert operator.post(f"{LAB}/try/", sent).status_code == 422, "no node is there that could keep it apart"
    lab_node()
    answer: Any = operator.post(f"{LAB}/try/", sent)
    job = LabJob.objects.get()
    assert answer.url == f"{LAB}/jobs/{job.pk}/"
    assert (job.kind, job.needs_sandbox, job.created_by) == ("try", True, oscar)
    assert job.options["texts"] == [{"prompt": "", "answer": "7", "completion": "7", "meta": {"tests": [1]}}]


# ---------------------------------------------------------------- asking


def test_samples_rows_and_a_probe_are_asked_for(
    operator: Client, verifier_version: VerifierVersion, dataset: PromptDataset, base_model: BaseModel
) -> None:
    ids = {"version": str(verifier_version.pk)}
    options = {"problems": 8, "group_size": 4, "temperature": 0.7, "top_p": 1.0, "seed": 3}
    options |= {"max_completion_tokens": 64, "template": "Q: {prompt}\nA:"}
    options |= {"chat": "template", "system": "Be brief.", "prefill": "<think>\n"}
    sample = {f"sample-{name}": value for name, value in {**options, "dataset": dataset.pk}.items()}
    operator.post(f"{LAB}/ask/", {**ids, "what": "sample", "sample-base_model": base_model.pk, **sample})
    operator.post(f"{LAB}/ask/", {**ids, "what": "rows", "rows-dataset": dataset.pk, "rows-rows": 5})
    operator.post(f"{LAB}/ask/", {**ids, "what": "probe", "probe-dataset": "", "probe-problems": 9, "probe-seed": 1})
    made = {job.kind: job for job in LabJob.objects.all()}
    assert made["sample"].options == {**PromptConfig().model_dump(), "stop": [], **options}
    assert (made["sample"].base_model, made["sample"].dataset) == (base_model, dataset)
    assert (made["try"].options["rows"], made["try"].dataset) == (5, dataset)
    assert (made["probe"].options, made["probe"].dataset) == ({"problems": 9, "seed": 1, "judged": []}, None)
    assert all(job.version == verifier_version for job in made.values())


def test_what_cannot_be_asked_for_is_said_beside_its_field(
    operator: Client, verifier_version: VerifierVersion, dataset: PromptDataset
) -> None:
    sent = {"version": str(verifier_version.pk), "what": "rows", "rows-dataset": dataset.pk, "rows-rows": "999999"}
    response = operator.post(f"{LAB}/ask/", sent)
    assert response.status_code == 422
    assert 'id="id_rows-rows_error"' in html(response)
    missing = operator.post(f"{LAB}/ask/", sent | {"what": "sample", "sample-problems": "many"})
    assert {"base_model", "dataset", "problems"} <= set(missing.context["sample_form"].errors)
    assert not LabJob.objects.exists()


# ---------------------------------------------------------------- a job's page


def test_a_job_polls_is_called_off_and_says_why_it_failed(
    operator: Client, ours: Project, oscar: User, verifier_version: VerifierVersion
) -> None:
    job, other = (
        job_request(project=ours, actor=oscar, kind="probe", version=verifier_version, options={}) for _ in range(2)
    )
    address = f"{LAB}/jobs/{job.pk}/"
    seen = re.search(r"live/\?v=([^\"]*)", html(operator.get(address)))
    assert seen is not None
    live = f"{address}live/?v={seen[1]}"
    assert operator.get(live).status_code == 204
    claimed(job)
    assert operator.get(live).status_code == 200
    operator.post(f"{address}cancel/")
    assert fresh(job).cancel_asked
    failed(other, "the folder tiny is not there", "Traceback <b>", lab_node("another"))
    page = html(operator.get(f"{LAB}/jobs/{other.pk}/"))
    assert "the folder tiny is not there" in page
    assert "Traceback &lt;b&gt;" in page


def test_what_a_base_model_answered(viewer: Client, job: LabJob) -> None:
    """Rewards by hand: rrrr 4 × 1.2; rwxr 1.2, 0.2, 0, 1.2; xxxx 0; rww 1.2, 0.2, 0.2 and one without: 9 × 1.2 is not
    there, but 7 × 1.2 + 3 × 0.2 = 9 over 15 samples: 0.6."""
    page = html(viewer.get(f"{LAB}/jobs/{job.pk}/"))
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


def test_of_many_datasets_the_newest_are_offered_and_others_by_name(
    operator: Client, verifier_version: VerifierVersion, dataset: PromptDataset
) -> None:
    version, rows = verifier_version, dataset_copies(dataset, 300)
    page = f"/p/ours/rewards/{version.verifier_id}/lab/"
    newest = [row.pk for row in reversed(rows)]

    def offered(response: Any) -> list[int]:
        return [pk for pk, _ in response.context["rows_form"].fields["dataset"].choices if pk]

    first = operator.get(page)
    assert offered(first) == newest[:200]
    assert 'name="find"' in html(first)
    assert offered(operator.get(page, {"find": "set 7.", "dataset": dataset.pk})) == [dataset.pk, rows[7].pk]
    draft = operator.post(f"{LAB}/draft/", {"spec": json.dumps(version.spec), "find": "set 8."})
    assert offered(draft) == [newest[0], rows[8].pk]
    sent = {"version": version.pk, "what": "rows", "rows-dataset": rows[0].pk, "rows-rows": "3"}
    assert operator.post(f"{LAB}/ask/", sent).status_code == 302, "one that was not offered"
    assert LabJob.objects.get().dataset == rows[0]


def test_a_group_s_samples_are_browsed(viewer: Client, oscar: User, job: LabJob) -> None:
    address = f"{LAB}/jobs/{job.pk}"
    page = html(viewer.get(f"{address}/groups/0/"))
    assert page.count("<article") == 4
    assert "Q: what is 0 + 7? A:" in page
    assert HOSTILE_SHOWN in page
    assert "<script>alert(1)" not in page
    assert f"{address}/groups/1/" in page
    assert viewer.get(f"{address}/groups/4/").status_code == 404
    result = viewer.get(f"{address}/result.json")
    assert result.streaming
    assert json.loads(b"".join(result)) == job.result
    assert "attachment" in result.headers["Content-Disposition"]
    options = {"texts": [{"completion": "x", "answer": "7"}]}
    alone = job_request(project=job.project, actor=oscar, kind="try", version=job.version, options=options)
    finished(alone, {**(job.result or {}), "kind": "try", "no_signal": None, "group_size": None})
    text = text_of(html(viewer.get(f"{LAB}/jobs/{alone.pk}/")))
    assert ("Answer scored" in text, "no signal" in text) == (True, False)


def test_a_probe_names_wrong_answers_it_pays(
    ours: Project, oscar: User, viewer: Client, dataset: PromptDataset
) -> None:
    version = format_only(ours, oscar)
    probe = probed(version, oscar, dataset)
    assert probe.verdict == "pays_wrong"
    page = html(viewer.get(f"{LAB}/jobs/{probe.job_id}/"))
    assert all(f'id="class-{name}"' in page for name in probe.pays_wrong)
    reward = html(viewer.get(f"/p/ours/rewards/{version.verifier_id}/"))
    assert f"{LAB}/jobs/{probe.job_id}/" in reward
    for text in (reward, html(viewer.get(f"{LAB}/"))):
        assert "rewards wrong answers" in text_of(text)


def test_bars_are_as_high_as_their_counts() -> None:
    drawn = histogram_drawn([0.0, 0.5, 1.0], [3, 4])
    assert drawn is not None
    assert [tick.text for tick in drawn.up] == ["0", "2", "4"]
    assert [tick.text for tick in drawn.across] == ["0", "0.250", "0.500", "0.750", "1.00"]
    low, high = drawn.bars
    assert (low.height / high.height, high.y) == (0.75, 8)
    assert low.y + low.height == high.y + high.height == drawn.base
    equal = histogram_drawn([1.0, 1.0], [7])
    assert equal is not None
    assert (len(equal.bars), len(equal.across), equal.up[-1].text) == (1, 1, "10")
    assert histogram_drawn([], []) is None


def test_an_interval_stands_where_its_bounds_are() -> None:
    drawn = interval_drawn(0.25, (0.1, 0.5))
    assert drawn is not None
    assert (drawn.low, drawn.width, drawn.at) == (12.0, 48.0, 30.0)
    assert interval_drawn(None, None) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 µs"), (3.2e-6, "3 µs"), (0.0004, "400 µs"), (0.0021, "2.1 ms"), (1.5, "1.5 s"), (190, "3 min 10 s")],
)
def test_a_call_s_time_is_told_from_microseconds_on(seconds: float, words: str) -> None:
    assert call_time(seconds).replace("\xa0", " ") == words


REASON = "Only the form is to be learned in this warm-up."
NEW = "/p/ours/runs/new/"


@pytest.fixture
def held(ours: Project, oscar: User) -> VerifierProbe:
    """Of a version that pays the form alone."""
    return probed(format_only(ours, oscar), oscar)


def draft(maker: Maker, version: VerifierVersion) -> Run:
    return run_create(**{**maker._named("draft"), "verifier_version": version}, settings={"eval": {"holdout": 4}})


def entry(kind: str) -> Any:
    (body,) = [json.loads(bytes(row.body)) for row in AuditEntry.objects.filter(kind=kind)]
    return body


def noted(run: Run) -> LaunchProbe:
    launch = launch_of(run)
    assert launch is not None
    return launch


def test_a_probe_on_the_same_dataset_counts_more_than_a_newer_one(
    ours: Project, oscar: User, dataset: PromptDataset, heldout: PromptDataset, verifier_version: VerifierVersion
) -> None:
    assert gate(verifier_version, dataset).state == "unprobed"
    other = probed(verifier_version, oscar, heldout)
    assert gate(verifier_version, dataset).probe == other, "the newest, where there is none of the dataset"
    mine = probed(verifier_version, oscar, dataset)
    probed(verifier_version, oscar, heldout)
    assert gate(verifier_version, dataset).probe == mine
    newest = probed(verifier_version, oscar, dataset)
    assert gate(verifier_version, dataset).probe == newest
    assert gate(format_only(ours, oscar), dataset).state == "unprobed", "nothing is known of another version"


@pytest.mark.parametrize("reason", ["", "   ", "because", "  too short", "x" * 5_001])
def test_without_a_reason_of_fit_length_nothing_is_launched(maker: Maker, held: VerifierProbe, reason: str) -> None:
    run = draft(maker, held.version)
    with pytest.raises(ConfigError) as refused:
        run_submit(run=run, actor=maker.actor, probe_override=reason)
    assert [fault.path for fault in refused.value.problems] == ["probe_override"]
    assert fresh(run).state == "draft"
    assert not LaunchProbe.objects.exists()
    assert not AuditEntry.objects.filter(kind__in=["run_submitted", "hold_back_overridden"]).exists()


def test_a_reason_is_kept_with_what_was_known(maker: Maker, held: VerifierProbe) -> None:
    run = draft(maker, held.version)
    run_submit(run=run, actor=maker.actor, probe_override=f"  {REASON} ")
    run.refresh_from_db()
    launch = noted(run)
    assert run.state == "queued"
    assert (launch.probe, launch.state, launch.overridden, launch.reason) == (held, "pays_wrong", True, REASON)
    assert (launch.by, launch.pays_wrong) == (maker.actor, held.pays_wrong)
    logged = entry("hold_back_overridden")
    assert (logged["reason"], logged["subject"], logged["actor"]) == (REASON, f"run:{run.pk}", "user:alice")
    known = {"state": "pays_wrong", "pays_wrong": held.pays_wrong, "probe": {"id": held.pk, "digest": held.digest}}
    assert logged["data"] == {"config_digest": run.config_digest, **known}
    assert entry("run_submitted")["data"]["reward_probe"] == known


def test_an_unprobed_reward_is_launched_for_a_reason_that_is_kept(
    operator: Client, maker: Maker, chosen: dict[str, str], verifier_version: VerifierVersion
) -> None:
    assert "never probed" in html(operator.post(NEW, chosen | {"action": "check"}))
    run = draft(maker, verifier_version)
    with pytest.raises(ConfigError) as refused:
        run_submit(run=run, actor=maker.actor)
    assert [fault.path for fault in refused.value.problems] == ["probe_override"]
    run_submit(run=run, actor=maker.actor, probe_override=REASON)
    launch = noted(run)
    assert (launch.probe, launch.state) == (None, "unprobed")
    assert (launch.overridden, launch.reason) == (True, REASON)
    assert entry("run_submitted")["data"]["reward_probe"] == {"state": "unprobed", "pays_wrong": [], "probe": None}
    assert entry("hold_back_overridden")["reason"] == REASON
    page = html(operator.get(f"/p/ours/runs/{run.pk}/"))
    assert ("Not probed, and launched with override" in page, REASON in page) == (True, True)
    with pytest.raises(DatabaseError), transaction.atomic():
        LaunchProbe.objects.update(reason="another")


def test_the_form_has_an_unprobed_reward_probed(
    operator: Client, chosen: dict[str, str], oscar: User, verifier_version: VerifierVersion, dataset: PromptDataset
) -> None:
    form = chosen | {"probe_override": ""}
    refused = operator.post(NEW, form | {"action": "launch"})
    assert (refused.status_code, 'id="probe-reward"' in html(refused)) == (422, True)
    for _ in range(2):
        page = html(operator.post(NEW, form | {"action": "probe"}, headers={"HX-Request": "true"}))
        job = LabJob.objects.get()  # the second press finds the first one's job
        assert (job.kind, job.version, job.dataset) == ("probe", verifier_version, dataset)
        assert f'hx-get="/p/ours/runs/probes/{job.pk}/"' in page
    assert operator.get(f"/p/ours/runs/probes/{job.pk}/").status_code == 200
    LabJob.objects.update(state="failed", error="no sandbox here")
    ended = operator.get(f"/p/ours/runs/probes/{job.pk}/")
    assert (ended.status_code, ended["HX-Trigger"], "no sandbox here" in html(ended)) == (286, "previewed", True)
    probed(verifier_version, oscar, dataset)
    assert gate(verifier_version, dataset).state == "clean"
    assert 'id="reward-gate"' not in html(operator.post(NEW, form | {"action": "check"}))


# ---------------------------------------------------------------- the form and the pages


def test_the_form_launches_for_a_reason_that_every_page_tells(
    operator: Client, viewer: Client, chosen: dict[str, str], held: VerifierProbe
) -> None:
    form = chosen | {"verifier_version": str(held.version_id)}
    assert 'id="reward-gate"' in html(operator.post(NEW, form | {"action": "check"}))
    refused = operator.post(NEW, form | {"action": "launch", "probe_override": "because"})
    assert refused.status_code == 422
    assert ">\nbecause</textarea>" in html(refused), "what was typed stays"
    assert not Run.objects.exists()
    assert operator.post(NEW, form | {"action": "draft"}).status_code == 302, "a draft needs no reason"
    answer: Any = operator.post(NEW, form | {"action": "launch", "probe_override": f"{REASON} {HOSTILE}"})
    assert answer.url == f"/p/ours/runs/{Run.objects.latest('pk').pk}/"
    for address in (answer.url, f"/p/ours/rewards/{held.version.verifier_id}/"):
        page = html(viewer.get(address))
        assert all(part in page for part in (REASON, HOSTILE_SHOWN, "oscar"))
        assert "<script>alert(1)" not in page


def test_a_draft_of_it_asks_for_the_reason_at_its_launch(operator: Client, maker: Maker, held: VerifierProbe) -> None:
    run = draft(maker, held.version)
    address = f"/p/ours/runs/{run.pk}/submit/"
    for reason in ({}, {"probe_override": "because"}):
        response = operator.post(address, reason)
        assert response.status_code == 409
        assert 'name="probe_override"' in html(response)
    assert operator.post(address, {"probe_override": REASON}).status_code == 302
    assert fresh(run).state == "queued"
