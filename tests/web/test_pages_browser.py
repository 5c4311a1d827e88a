"""Every page in a real browser: by axe's rules in both themes, every fold open, and no wider than a phone.

With COHORT_TEST_SCREENSHOTS set to a folder, pictures of the pages are kept there.
"""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from cohort.accounts.invitations import invitation_make
from cohort.accounts.models import Project, SignInCount, User
from cohort.accounts.people import user_disable
from cohort.accounts.services import staff_make, user_create
from cohort.alerts.delivery import channel_test_request
from cohort.alerts.desk import alerts_acknowledge, alerts_close
from cohort.alerts.models import Alert, AlertDelivery, AlertRule
from cohort.alerts.opening import alerts_check
from cohort.alerts.rules import rule_create
from cohort.audit.models import LogPush
from cohort.catalog.models import PromptDataset
from cohort.catalog.run_inputs import ChosenSuite
from cohort.catalog.services import base_model_register, dataset_create
from cohort.catalog.suites import starters_add
from cohort.lab.chat import message_send
from cohort.lab.models import JobKind
from cohort.lab.services import config_job_request, doctor_request, job_request
from cohort.launch.creation import run_create, run_submit
from cohort.nodes.models import Node
from cohort.pipelines.services import pipeline_create, pipeline_pause, pipeline_start
from cohort.review.models import Rescore
from cohort.review.rescores import rescore_request
from cohort.review.services import answer_judge, sample_judge
from cohort.review.uses import sample_to_probe_case
from cohort.runs.base_models import checkpoint_register, checkpoint_request
from cohort.runs.logs import log_append
from cohort.runs.marks import run_note_set, run_tags_change
from cohort.runs.models import Attempt, ImportedResult, Run
from cohort.web.launch.run_form import RunForm
from tests.browser import picture
from tests.factories.alerts import any_cause, diagnosed, webhook
from tests.factories.lab import chat_model, done, evaluated, failed, format_only, lab_node, probed, sampled, talked
from tests.factories.pipelines import stage_succeed
from tests.factories.rescores import ended_run, rescored, second
from tests.factories.runs import HOSTILE, UNPROBED, Maker, add_checkpoint, add_evaluation, add_group, add_steps, put_in
from tests.factories.small_cards import Log, Sealed, card, cards, packed
from tests.factories.suites import CHOICES, HARMFUL, add_suite
from tests.web.control import ended
from tests.web.windows import serious_faults, windows

pytestmark = pytest.mark.slow

_TOO_WIDE = """() => document.documentElement.scrollWidth <= 360 ? [] : [...document.querySelectorAll("main *")]
    .filter((one) => one.getBoundingClientRect().right > 360 && !one.closest(".scroll, .editor, pre"))
    .map((one) => one.outerHTML.slice(0, 150))"""


def catalog(maker: Maker, alice: User) -> list[str]:
    model, dataset, verifier = maker.base_model, maker.dataset, maker.verifier_version.verifier
    below = [
        *("members/", "models/", "models/new/", f"models/{model.pk}/", "datasets/", "datasets/new/"),
        *(f"datasets/{dataset.pk}/", "rewards/", "rewards/new/", f"rewards/{verifier.pk}/"),
        *(f"rewards/{verifier.pk}/new-version/", "../../projects/", "../../projects/new/", "../../password/"),
    ]
    return [*below, "../never-made/datasets/"]


def run_of(maker: Maker) -> Run:
    """At step 6 of 12 in its second attempt; the first was lost with hostile last words."""
    run = maker.run("add two digits", state="training", optim={"steps": 12}, preset="demo")
    first = maker.attempt(run)
    numbers = {"reward_group_std": 0.2, "frac_reward_zero_std": 0.25, "entropy": 0.00123, "groups/mixed": 0.7}
    add_steps(first, [{"reward": 0.1 * step, "sampling/logp_difference/mean": 1e-6, **numbers} for step in range(8)])
    add_group(first, [1.0, 0.0, None, 1.0], step=6, completion=HOSTILE, advantages=[1, -2, 0, 1])
    for phase in ("before", "after"):
        add_evaluation(first, phase, [1, 0, 1, 0])
    for step in (0, 2, 4, 6, 8):
        add_checkpoint(first, step, best=step == 4, stored=step == 6, removed=step == 2)
    ended(first, "lost", end_code="worker_lost", end_reason=f"No sign of life {HOSTILE}", valid_through=6)
    put_in(run, "training", step=6, phase="training", seconds_per_step=1.0)
    second = maker.attempt(run)
    Attempt.objects.filter(pk=second.pk).update(resumed_step=6)
    printed = f"step 7/12 · reward 0.5\nwarning: {HOSTILE}\nValueError: no\n{'a long line ' * 40}\n"
    log_append(attempt=second, fence=second.fence, offset=0, body=printed.encode())
    return run


def run_tabs(maker: Maker, alice: User) -> list[str]:
    run = run_of(maker)
    tabs = (
        "",
        "groups/",
        "samples/",
        "samples/?reward_min=much&finish=eos",
        f"groups/{run.groups.get().pk}/?sample=2",
        "evaluations/",
        "attempts/?all=1",
    )
    run_tags_change(run=run, actor=alice, add=["hack"])
    run_note_set(run=run, actor=alice, note=HOSTILE.replace("\x07", ""))
    listed = ("runs/", "runs/?q=nothing", "runs/?q=rewrd>1", "runs/?columns=G,algorithm.kl.coef,note&sort=-G")
    return [
        "",
        *listed,
        f"runs/{run.pk}/marks/",
        "runs/new/",
        *(f"runs/{run.pk}/{tab}" for tab in (*tabs, "logs/", "logs/?q=step&level=warning", "config/")),
    ]


def reviewed(maker: Maker, alice: User) -> list[str]:
    """A run whose verifier passes half of what people call wrong, and one that nobody has judged."""
    run, unjudged = run_of(maker), maker.run("unjudged")
    attempt = run.attempts.get(fence=2)
    metric = f"rewards/{run.parsed_config.reward.success_component}/mean"
    add_steps(attempt, [{"reward": 0.5, metric: 0.2 + 0.01 * step} for step in range(40)], first=7)
    for step in (8, 20, 45):
        group = add_group(attempt, [1.0] * 6 + [0.0] * 6, step=step, completion=HOSTILE)
        for sample in group.samples.all():
            verdict = "right" if sample.index < step // 8 or sample.index == 9 else "wrong"
            sample_judge(sample=sample, actor=alice, verdict=verdict, note=HOSTILE if sample.index == 5 else "")
    sample_to_probe_case(sample=sample, verifier=maker.verifier_version.verifier, actor=alice)
    add_suite(maker.project, alice)
    of_group = f"runs/{run.pk}/groups/{group.pk}/"
    reward = f"rewards/{maker.verifier_version.verifier_id}/"
    return [f"runs/{run.pk}/review/", f"runs/{unjudged.pk}/review/", of_group, f"{of_group}samples/11/use/", reward]


def pipelines(maker: Maker, alice: User) -> list[str]:
    """R1's shape: a stage that trained, one that is refused, those that wait; and the form with a paper's pipeline."""
    reward = f"reward: {maker.verifier_version.verifier.name}@1"
    rows = f"model: {{path: {maker.base_model.name}}}, data: {{path: {maker.dataset.name}}}, {reward}"
    text = f"""
name: "{HOSTILE[:20].replace('"', "").replace(chr(7), "")} r1"
stages:
  rl: {{{rows}, eval: {{holdout: 4}}}}
  kept: {{kind: sample, {rows.replace(f"path: {maker.base_model.name}", "stage: rl")}}}
  pairs: {{kind: sample, rows: pairs, {rows.replace(f"path: {maker.base_model.name}", "stage: rl")}}}
  fine-tuned: {{kind: sft, model: {{path: {maker.base_model.name}}}, data: {{stage: kept}}}}
  judge: {{kind: reward_model, model: {{stage: fine-tuned}}, data: {{stage: pairs, holdout: 2}}}}
"""
    pipeline = pipeline_create(project=maker.project, actor=alice, text=text)
    pipeline_start(pipeline=pipeline, actor=alice, override=UNPROBED)
    attempt = stage_succeed(maker, pipeline, "rl").attempts.get()
    for phase, scores in (("before", [0, 0, 0, 1]), ("after", [1, 0, 1, 1])):
        add_evaluation(attempt, phase, scores, suite="heldout")
    pipeline_pause(pipeline=pipeline, actor=alice)
    below = f"pipelines/{pipeline.pk}/"
    return ["pipelines/", "pipelines/new/?preset=deepseek-r1", below, f"{below}stages/rl/", f"{below}stages/judge/"]


def checkpoints(maker: Maker, alice: User) -> list[str]:
    """One on the platform that is a base model, one on its node, final weights on their way."""
    run = run_of(maker)
    stored, there = (run.checkpoints.get(step=step) for step in (6, 4))
    final = add_checkpoint(run.attempts.get(fence=1), 8, final=True)
    Node.objects.update(last_seen_at=timezone.now())
    model = checkpoint_register(checkpoint=stored, actor=alice, name="add two digits step 6")
    checkpoint_request(checkpoint=final, actor=alice)
    pages = [f"runs/{run.pk}/checkpoints/{one.pk}/" for one in (stored, there, final)]
    return [f"runs/{run.pk}/attempts/", *pages, "models/", f"models/{model.pk}/", f"runs/new/?model={model.pk}"]


def rescores(maker: Maker, alice: User) -> list[str]:
    """One done, with a group and a hostile reason; one that waits; what a further one takes."""
    run, version = ended_run(maker), second(maker)
    done = rescored(run, version, alice, reason=HOSTILE.replace("\x07", ""))
    Rescore.objects.filter(pk=done.pk).update(errors={"verifier": {"count": 2, "example": HOSTILE}})
    waiting = rescore_request(run=run, version=version, actor=alice)
    below = ("", f"?version={version.pk}", f"{done.pk}/", f"{waiting.pk}/")
    group = run.groups.get(step=1)
    return [*(f"runs/{run.pk}/rescores/{page}" for page in below), f"runs/{run.pk}/groups/{group.pk}/"]


def stalled(maker: Maker, alice: User) -> list[str]:
    run = run_of(maker)
    put_in(run, "training", stalled_at=timezone.now())
    return [f"runs/{run.pk}/", f"runs/{run.pk}/events/", "queue/"]


def standing_still(maker: Maker, alice: User) -> list[str]:
    """A run that waits to be tried again, one that is paused, one that failed, one of another label."""
    paths = ["queue/", "limits/"]
    later = timezone.now() + timedelta(hours=1)
    for state, fields in (("queued", {"retries": 2, "not_before": later}), ("paused", {}), ("failed", {})):
        run = run_of(maker)
        run.attempts.filter(state="running").update(state="failed")
        put_in(run, state, reason=f"node-a was lost {HOSTILE}", **fields)
        paths.append(f"runs/{run.pk}/")
    Run.objects.filter(pk=maker.run("another", state="queued").pk).update(node_label="a100", priority=10)
    return [*paths, f"runs/{run.pk}/retry/", f"runs/{run.pk}/extend/"]


def nodes(maker: Maker, alice: User) -> list[str]:
    """One of each kind: working for us, hostile, draining, silent, never heard of, revoked."""
    run_of(maker)
    now = timezone.now()
    devices = [{"kind": "cuda", "name": "NVIDIA H200", "memory_bytes": 150_754_820_096}] * 8
    info = {"hostname": "gpu-1.example", "cpus": 96, "memory_bytes": 10**12, "devices": devices, "labels": ["h200"]}
    bad = {"hostname": HOSTILE, "devices": [{"kind": HOSTILE, "name": HOSTILE}], "labels": [HOSTILE] * 3}
    for name, fields in {
        "hostile": {"info": {**info, **bad, "sandbox": HOSTILE}, "last_seen_at": now},
        "gpu-2": {"info": info, "last_seen_at": now, "draining": "finish", "next_token_digest": "n" * 64},
        "gpu-3": {"info": info, "last_seen_at": now - timedelta(minutes=14)},
        "new-machine": {},
        "gpu-0": {"info": info, "last_seen_at": now, "revoked_at": now},
    }.items():
        Node.objects.create(name=name, token_digest=name.ljust(64, "0"), **fields)
    return ["nodes/", "nodes/new/", *(f"nodes/{node.pk}/" for node in Node.objects.order_by("pk"))]


def log(maker: Maker, alice: User) -> list[str]:
    staff_make(user=alice)
    LogPush.objects.create(target="git", error="no such host", failed_at=timezone.now())
    return ["audit/", "audit/?kind=none", "audit/?since=x", "../../log/", "../../log/server/", "../../verify/"]


def suites(maker: Maker, alice: User) -> list[str]:
    """A run measured on two suites, one of them sensitive and hostile, with an imported result."""
    made = [add_suite(maker.project, alice), add_suite(maker.project, alice, "locks", spec=HARMFUL, content=CHOICES)]
    run = run_create(
        **maker._named("measured"), settings={"eval": {"holdout": 4}}, suites=[ChosenSuite(version) for version in made]
    )
    put_in(run, "succeeded")
    attempt = maker.attempt(run, state="finished")
    for name in ("heldout", "capitals", "locks"):
        for phase, scores in (("before", [0, 1] * 5), ("after", [1] * 10)):
            add_evaluation(attempt, phase, scores, suite=name, completion=HOSTILE, slices=["even", "odd"])
    ImportedResult.objects.create(
        run=run, by=alice, tool="inspect", task="sums", phase="after", metric="match/accuracy", value=0.75,
        stderr=0.1637, n=8, higher_is="better", facts={"model": "mockllm/model"}, file_name="sums.eval",
        file_sha256="ab" * 32, samples={"n": 8, "mean": 0.75, "sha256": None},
    )  # fmt: skip
    starters_add(project=maker.project, actor=alice)
    texts = f"runs/{run.pk}/evaluations/?suite=locks&texts=1"
    suite = made[1].suite_id
    return ["suites/", "suites/new/", f"suites/{suite}/", "runs/new/", texts, f"runs/{run.pk}/evaluations/import/"]


def lab(maker: Maker, alice: User) -> list[str]:
    form, project, dataset = format_only(maker.project, alice), maker.project, maker.dataset
    probe = probed(form, alice, dataset)
    words = ["rrrrrrrr", "rwxrwxrx", "xxxxxxxx", "rwwewwwr"]
    job = sampled(maker.verifier_version, alice, dataset, maker.base_model, groups=words)
    lab_node()
    broken = failed(
        job_request(project=project, actor=alice, kind="probe", version=form, options={}), "it is gone", "log"
    )
    maker.verifier_version = form
    run = maker.run("warm-up")
    run_submit(run=run, actor=alice, probe_override="Only the form is to be learned in this warm-up.")
    return [
        *("rewards/new/?example=python", "rewards/new/?example=code", "lab/", f"lab/jobs/{job.pk}/"),
        *(f"rewards/{form.verifier_id}/", f"rewards/{form.verifier_id}/lab/", f"lab/jobs/{job.pk}/groups/3/"),
        *(f"lab/jobs/{probe.job_id}/", f"lab/jobs/{broken.pk}/", "runs/new/", f"runs/{run.pk}/"),
    ]


def models(maker: Maker, alice: User) -> list[str]:
    """Two models evaluated on a sensitive suite with slices, a chat of two messages, and one that waits."""
    version = add_suite(maker.project, alice, "locks", spec=HARMFUL, content=CHOICES)
    model = maker.base_model
    other = base_model_register(project=maker.project, actor=alice, name="a reference", path=model.path)
    earlier = evaluated(other, alice, version, [0.0, 1.0, 0.0, 1.0], completion=HOSTILE)
    job = evaluated(model, alice, version, [1.0, 1.0, None, 0.0], completion=HOSTILE)
    text = HOSTILE.replace("\x07", "")
    answers = {"model": HOSTILE * 9, "reference": "a-long-word" * 40}
    chat = talked(alice, text, answers, base_model=model, reference=other)
    answer_judge(answer=chat.messages.get().answers.get(side="model"), actor=alice, verdict="wrong", note=text)
    message_send(conversation=chat, actor=alice, text="and now?")
    return [
        *(f"models/{model.pk}/", f"models/{model.pk}/evaluate/", f"lab/jobs/{job.pk}/?against={earlier.pk}&texts=1"),
        *("lab/chat/", f"lab/chat/{chat.pk}/", f"lab/chat/{chat.pk}/messages/1/suite/", "lab/"),
        f"lab/chat/{chat.pk}/messages/1/delete/",
    ]


def tokens(maker: Maker, alice: User) -> list[str]:
    """The exact tokens of a new run's hostile problems, and a model that was looked at."""
    prompts = [f"{HOSTILE}<|im_end|> {number}".replace("\x07", "") for number in range(9)]
    lines = [json.dumps({"prompt": prompt, "answer": "5"}) for prompt in prompts]
    given: dict[str, Any] = {"name": "odd", "format": "plain", "source": "", "chunks": ["\n".join(lines).encode()]}
    dataset_create(project=maker.project, actor=alice, **given)
    form = RunForm.new(maker.project)
    config = form.check()
    assert config is not None
    preview = config_job_request(kind=JobKind.PREVIEW, project=maker.project, actor=alice, config=config, **form.rows)
    doctor = doctor_request(base_model=maker.base_model, actor=alice)
    with TemporaryDirectory() as folder:
        for job in (preview, doctor):
            done(job, chat_model(Path(folder)))
    return ["runs/new/", f"models/{maker.base_model.pk}/", f"lab/jobs/{preview.pk}/"]


def people(maker: Maker, alice: User) -> list[str]:
    """More than a page of people, one of them disabled; who is invited to `ours`, and what alice is invited to."""
    dora, _ = user_create(username="dora")
    for number in range(110):
        user_create(username=f"{'long-name-' * 14}{number}"[-150:])
    user_disable(user=dora, actor=alice)
    theirs = Project.objects.get(slug="theirs")
    for project, sender, name in ((maker.project, alice, "zoe"), (theirs, theirs.memberships.get().user, "alice")):
        invitation_make(project=project, actor=sender, username=name, role="reviewer")
    charlie = User.objects.get(username="charlie")
    below = ["people/", "people/?page=2", "people/?q=nobody", f"people/{dora.pk}/", f"people/{charlie.pk}/"]
    return ["members/", "limits/", *(f"../../{path}" for path in (*below, "projects/", "password/"))]


def alerts(maker: Maker, alice: User) -> list[str]:
    """Open, acknowledged and closed ones with hostile texts, and a delivery that fails."""
    run = run_of(maker)
    attempt = run.attempts.order_by("-fence")[0]
    channel = webhook(maker.project, alice, "https://hooks.example.org/services/T00000000/B00000000/a-long-token")
    any_cause(maker.project)
    for cause in ("cut_off", "ruined", "all_wrong", HOSTILE):
        diagnosed(attempt, cause, text=f"12 of 16 completions {HOSTILE}", advice="Raise the limit.")
    alerts_check()
    AlertDelivery.objects.update(tries=2, status=500, error="It answered with status 500, and only 2xx means yes.")
    every = list(Alert.objects.order_by("pk"))
    alerts_acknowledge(alerts=every[:1], actor=alice, note=HOSTILE)
    alerts_close(alerts=every[1:2], actor=alice)
    search = {"condition": "search", "query": "reward<0.1 step>20"}
    rule = rule_create(project=maker.project, actor=alice, name="low reward", channels=[channel], **search)
    AlertRule.objects.filter(pk=rule.pk).update(fault="No field, metric or suite of this project is called odd.")
    channel_test_request(channel=channel, actor=alice)
    below = ["", "?state=all", "?state=closed&run=none", f"{every[0].pk}/", f"{every[3].pk}/", "rules/", "rules/new/"]
    below += [f"rules/{rule.pk}/", "channels/", "channels/new/", f"channels/{channel.pk}/"]
    return ["", "runs/", f"runs/{run.pk}/", *(f"alerts/{path}" for path in below)]


@pytest.fixture
def server(transactional_db: None, dataset: PromptDataset, live_server: LiveServer) -> str:
    return live_server.url


SCENES = [
    *(catalog, run_tabs, reviewed, checkpoints, rescores, stalled, standing_still, nodes, log),
    *(suites, lab, models, tokens, people, alerts, pipelines),
]


@pytest.mark.parametrize("scene", SCENES)
def test_pages_have_no_serious_faults_and_fit_a_phone(
    browser: Browser, server: str, maker: Maker, alice: User, scene: Callable[[Maker, User], list[str]]
) -> None:
    faults: list[object] = []
    with windows(browser, server, meant=["404 (Not Found)", "422 ("]) as opened:
        page = opened("runs/")
        for at, path in enumerate(scene(maker, alice)):
            page.set_viewport_size({"width": 360, "height": 900})
            page.goto(f"{server}/p/ours/{path}")
            for fold in page.locator("main details").all():
                fold.evaluate("one => one.open = true")
            faults += [(path, wide) for wide in page.evaluate(_TOO_WIDE)]
            page.set_viewport_size({"width": 1440, "height": 900})
            faults += serious_faults(page, path)
            page.emulate_media(color_scheme="light")
            picture(page, f"{scene.__name__}-{at}")
    assert faults == []


def test_a_delayed_sign_in_is_explained(browser: Browser, server: str, alice: User) -> None:
    page = browser.new_context(viewport={"width": 360, "height": 900}).new_page()
    for _ in range(6):
        page.goto(f"{server}/login/")
        page.get_by_label("Name").fill("alice")
        page.get_by_label("Password").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_load_state()
        SignInCount.objects.update(delayed_until=timezone.now() + timedelta(minutes=5))
    expect(page.get_by_role("heading", name="Sign-in delayed")).to_be_visible()
    assert page.evaluate(_TOO_WIDE) == []
    assert serious_faults(page, "delayed") == []
    picture(page, "delayed")
    page.context.close()


def test_a_card_is_checked_in_the_browser(browser: Browser, server: str, tmp_path: Path) -> None:
    made = Log()
    files = {"older": card(made, Sealed(head={**Sealed().head, "run": 6})), "card": cards(made)["public"]}
    faults: list[str] = []
    with windows(browser, server) as opened:
        page = opened("../../verify/")
        for name, content in (*files.items(), ("changed", {**files["card"], "CARD.md": b"else"})):
            (tmp_path / f"{name}.zip").write_bytes(packed(content))
        for name, verdict in (("card", "Unknown signer"), ("changed", "Changed")):
            page.get_by_label("Card", exact=True).set_input_files(tmp_path / f"{name}.zip")
            page.get_by_label("Older card").set_input_files(tmp_path / "older.zip")
            page.get_by_role("button", name="Check").click()
            expect(page.locator("#verdict")).to_contain_text(verdict)
            faults += serious_faults(page, name)
    assert faults == []
