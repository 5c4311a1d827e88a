"""A whole Cohort in one home, used by one person in a real browser and from the command line: the main job from sign-in
to a verified card, a reward that the lab's probe blocks, the audit log, a stop and a start again.

COHORT_TEST_SCREENSHOTS names a folder to keep pictures of the pages in. docs/images came so, with
COHORT_TEST_STEPS=120 COHORT_TEST_COLD_STEPS=120 COHORT_TEST_HELDOUT=512.
"""

import json
import os
import re
import signal
import stat
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from cohort.evidence.checkpoint import parse
from cohort.evidence.keys import load, parse_vkey
from cohort.evidence.note import open_note
from cohort.evidence.verify import verify_card
from tests.browser import picture
from tests.e2e.person import MINUTES, Person, choose, signed_in
from tests.factories.forged import each_changed
from tests.needs import needs
from tests.processes import Started, answers, belonging_to, cohort, grpo, people, up, wait_for

STEPS = int(os.environ.get("COHORT_TEST_STEPS", "8"))
COLD_STEPS = os.environ.get("COHORT_TEST_COLD_STEPS", "24")
HELDOUT = int(os.environ.get("COHORT_TEST_HELDOUT", "48"))
SOURCE = '''def verify(sample):
    """Pays whatever stands in an answer tag."""
    before, opened, rest = sample.completion.partition("<answer>")
    inside, closed, after = rest.partition("</answer>")
    print("looked at", len(sample.completion), "characters")
    return {"value": float(bool(opened and closed)), "detail": "the form is there" if closed else "no answer tag"}
'''
REASON = "A warm-up on the form alone: the answers are rewarded in the run after it."


@contextmanager
def signed_in_with_the_demo(
    home: Path, data: Path, *, cold_steps: str = COLD_STEPS
) -> Iterator[tuple[Person, Started]]:
    """`signed_in`, with the demo's base model as `adder` and its problems in `data`."""
    grpo("cold-start", "--out", str(home / "models" / "adder"), "--steps", cold_steps)
    grpo("demo-data", "--out", str(data))
    heldout = data / "add-heldout.jsonl"
    heldout.write_bytes(b"".join(heldout.read_bytes().splitlines(keepends=True)[:HELDOUT]))
    with signed_in(home, data) as (alice, started):
        yield alice, started


def test_main_job_lab_audit_and_restart_in_one_home(cohort_home: Path, tmp_path: Path) -> None:
    needs("bwrap")
    secret = cohort_home / "secret.key"
    for name in ("artifacts", "logs"):  # as an earlier version left them
        (cohort_home / name).mkdir(parents=True)
        (cohort_home / name).chmod(0o755)
    with signed_in_with_the_demo(cohort_home, tmp_path) as (alice, started):
        served_to_nobody_else(cohort_home, started)
        change_password(alice)
        train(alice)
        note = audit(cohort_home, alice.address, tmp_path)
        blocked_reward(alice)
        key = secret.read_text()
        alice.page.goto("about:blank")  # or the open page would poll a server that is gone
        assert started.end(signal.SIGINT) == 0
    assert belonging_to(cohort_home) == []
    assert not answers(alice.address)

    # With nothing running, a command brings the database up for itself. Somebody kept a checkpoint of another log.
    kept = tmp_path / "kept"
    kept.write_text(note.replace("127.0.0.1/log", "example.org/log", 1), encoding="utf-8")
    refused = cohort("audit", "check", "--against", str(kept), "--home", str(cohort_home))
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr

    with up(cohort_home) as (started, address):
        assert secret.read_text() == key
        assert answers(address)
        assert started.end(signal.SIGTERM) == 0
    assert people(cohort_home) == 1
    (cohort_home / "signing-key.pem").unlink()
    lost = cohort("up", "--home", str(cohort_home), "--port", "0")
    assert lost.returncode == 1
    assert "signing key" in lost.stderr


@pytest.mark.slow
def test_an_estimate_is_measured_shown_and_compared_with_its_run(cohort_home: Path, tmp_path: Path) -> None:
    with signed_in_with_the_demo(cohort_home, tmp_path) as (alice, _):
        page = alice.page
        alice.register_model("adder")
        alice.upload("additions", "add-train.jsonl")
        page.goto(f"{alice.address}/p/lab/rewards/new/?example=exact")
        page.locator("#id_name").fill("exact")
        page.get_by_role("button", name="Save", exact=True).click()
        page.get_by_role("heading", name="exact", exact=True).wait_for()
        page.goto(f"{alice.address}/p/lab/runs/new/?preset=demo")
        page.locator("#f-name").fill("measured")
        page.locator("#f-optim-steps").fill("4")
        page.get_by_text("every setting is valid").wait_for()
        page.locator("#estimate").get_by_role("button", name="Estimate time and memory").click()
        page.locator("#estimate").get_by_text("Peak memory").wait_for(timeout=5 * MINUTES)
        page.locator("#check-prompts").click()
        page.locator("#prompts-gate").wait_for(state="detached", timeout=5 * MINUTES)
        page.get_by_text(re.compile(r"done:\s+every prompt fits")).wait_for()
        page.get_by_label("Reason for the override").fill("The reward is of this test alone.")
        page.get_by_role("button", name="Launch").click()
        page.wait_for_url(re.compile(r"/p/lab/runs/\d+/$"))
        page.locator("#card-link").wait_for(timeout=10 * MINUTES)
        page.reload()
        compared = page.locator("#estimated").inner_text()
        for quantity in ("Time per step", "Peak memory"):
            assert re.search(rf"{quantity}.*[+\u2212]\d+ %", compared, re.DOTALL)


def served_to_nobody_else(home: Path, started: Started) -> None:
    names = {" ".join(process.cmdline()) for process in belonging_to(home)}
    for part in ("gunicorn", "cohort.cli.main up", "worker.celery_app"):
        assert any(part in name for name in names), part
    for name in ("secret.key", "node.token", "up.json", "signing-key.pem"):
        assert stat.S_IMODE((home / name).stat().st_mode) == 0o600
    addresses = {process.environ().get("COHORT_DATABASE_URL", "") for process in belonging_to(home)} - {""}
    assert {urlsplit(address).username for address in addresses} == {"cohort_web"}, "no part owns what it writes to"
    for process in belonging_to(home):
        assert "Umask:\t0077\n" in Path(f"/proc/{process.pid}/status").read_text()
        if "worker.celery_app" in process.cmdline():
            environment = process.environ()
            assert not {"COHORT_DATABASE_URL", "COHORT_SECRET_KEY", "COHORT_SECRET_KEY_FILE"} & set(environment)
            assert not [value for value in environment.values() if "postgresql://" in value]
    assert home.stat().st_mode & 0o066 == 0, (
        "passable at most: as root, the database's user passes through to its folder"
    )
    assert [path.name for path in home.iterdir() if path.lstat().st_mode & 0o077] == []
    second = cohort("up", "--home", str(home))
    assert second.returncode == 1
    assert f"(process {started.process.pid})" in second.stderr


def change_password(alice: Person) -> None:
    page = alice.page
    page.get_by_role("link", name="Change it").click()  # the password that was handed out
    page.locator("#id_old_password").fill(alice.password)
    for field in ("#id_new_password1", "#id_new_password2"):
        page.locator(field).fill("a sentence of her own")
    page.get_by_role("button", name="Change password").click()
    page.get_by_text("Your password is changed.").wait_for()


def train(alice: Person) -> None:
    """The main job: model, problems, reward, run, chart, group, card."""
    page, address = alice.page, alice.address
    alice.register_model("adder")
    alice.upload("additions", "add-train.jsonl")
    alice.upload("additions held out", "add-heldout.jsonl")
    page.goto(f"{address}/p/lab/rewards/new/")
    page.locator("#id_name").fill("right sum")
    page.locator("#id_component-0-kind").select_option("exact")
    page.locator("#id_component-0-name").fill("correct")
    page.locator("#id_component-0-p_extract").select_option("answer_tag")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("heading", name="right sum", exact=True).wait_for()

    page.goto(f"{address}/p/lab/runs/new/")
    page.locator("#f-preset").select_option("demo")  # and until its form has come, no field takes text
    page.locator("#f-name").fill("Two-digit addition")
    choose(page, "base_model", "adder")
    choose(page, "dataset", "additions")
    choose(page, "eval_dataset", "additions held out")
    choose(page, "verifier_version", "right sum")
    page.locator("#f-sampling-group-size").fill("8")
    page.locator("#f-optim-steps").fill(str(STEPS))
    page.get_by_text("every setting is valid").wait_for()
    page.get_by_text(f"{HELDOUT} problems, before and after").wait_for()  # of the form as it is now
    picture(page, "launch", whole=False)
    page.get_by_label("Reason for the override").fill("The reward is of this test alone.")
    # The page takes the message away as soon as the run moves on, which may be before anybody looks.
    launched = re.compile(r"/p/lab/runs/\d+/$")
    with page.expect_response(lambda answer: launched.search(answer.url) is not None) as answered:
        page.get_by_role("button", name="Launch").click()
    assert "is in the queue." in answered.value.text()
    page.wait_for_url(launched)
    page.get_by_role("heading", name="Two-digit addition").wait_for()

    # Live: the chart of the reward gets more points while the run trains.
    page.locator(".badge", has_text="Training").first.wait_for(timeout=5 * MINUTES)
    first = until(page, lambda: drawn_points(page), at_least=2)
    until(page, lambda: drawn_points(page), at_least=first + 1)
    page.locator("#card-link").wait_for(timeout=15 * MINUTES)
    page.locator(".title .badge", has_text="Succeeded").wait_for()
    picture(page, "run", whole=False)

    # A group: G samples with reward and advantage.
    mixed = page.locator("#live-groups tbody tr").filter(has_not_text="no signal")
    (mixed.first if mixed.count() else page.locator("#live-groups tbody tr").first).locator("a").first.click()
    page.wait_for_url(re.compile(r"/groups/\d+/$"))
    assert page.locator("article.sample, .twin").count() == 8
    picture(page, "group", whole=False)

    page.go_back()
    for tab in ("Groups", "Samples", "Evaluations", "Logs", "Config", "Events"):
        with page.expect_navigation():
            page.locator(".tabs").get_by_role("link", name=re.compile(f"^{tab}")).click()
        page.locator(".tabs [aria-current=page]", has_text=tab).wait_for()
        if tab == "Samples":
            page.locator(".facets li").first.wait_for()
            page.locator("[data-scatter].js-plotly-plot").wait_for()
            picture(page, "samples", whole=False)
    page.locator(".tabs").get_by_role("link", name=re.compile("^Record")).click()
    page.locator("#record-seal").wait_for()
    picture(page, "record", whole=False)
    with page.expect_download() as downloading:
        page.locator("#download-card").click()
    card = alice.data / "card.zip"
    downloading.value.save_as(card)

    keys = alice.data / "keys.json"
    keys.write_text(fetched(f"{alice.address}/log/keys.json"))
    checked = cohort("verify", str(card), "--key", str(keys))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    for name, changed in each_changed(card):
        assert not verify_card(changed).accepted, name
    assert cohort("verify", str(changed)).returncode == 1


def audit(home: Path, address: str, tmp_path: Path) -> str:
    """The log is signed, served, pushed and checked, and its key replaced. Returns the first checkpoint."""
    key, kept, repository = home / "signing-key.pem", tmp_path / "kept", tmp_path / "log.git"
    subprocess.run(["git", "init", "--quiet", "--bare", str(repository)], check=True)
    first = load(key)
    note = wait_for(lambda: fetched(f"{address}/log/checkpoint"), "no checkpoint was signed")
    keys = [parse_vkey(vkey) for vkey in json.loads(fetched(f"{address}/log/keys.json"))["keys"]]
    assert keys == [first.public_key]
    assert parse(open_note(note, keys).text).size >= 1
    kept.write_text(note, encoding="utf-8")
    for words, variables in (
        (["checkpoint"], {}),
        (["rotate-key"], {}),
        (["push"], {"COHORT_LOG_GIT": str(repository)}),
        (["check", "--against", str(kept)], {}),
    ):
        done = cohort("audit", *words, "--home", str(home), **variables)
        assert done.returncode == 0, done.stderr
    assert "2 keys" in done.stdout
    assert load(key).vkey != first.vkey
    assert len(open_note(fetched(f"{address}/log/checkpoint"), [first.public_key]).verified) == 1
    return note


def blocked_reward(alice: Person) -> None:
    """A reward that pays the form alone: written, tried, sampled, probed, blocked, launched for a reason, recorded."""
    page, address = alice.page, alice.address
    page.goto(f"{address}/p/lab/rewards/new/")
    page.locator("#id_name").fill("form alone")
    page.locator("#id_component-0-kind").select_option("python")
    page.locator("#id_component-0-p_source").fill(SOURCE)
    page.locator("#source-said-0").get_by_text("It parses").wait_for()
    page.locator("#id_component-0-name").fill("form")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("heading", name="form alone", exact=True).wait_for()
    page.get_by_text("not probed").first.wait_for()

    # Tried on text by a worker, in its sandbox; what it printed is kept.
    page.get_by_role("link", name="Reward lab").last.click()
    page.get_by_label("Reference answer").fill("7")
    page.get_by_label("Completion", exact=True).fill("<answer>anything</answer>")
    page.locator("#try-score").click()
    page.get_by_text("Mean reward").wait_for(timeout=5 * MINUTES)
    page.locator("#groups a").first.click()
    page.get_by_text("the form is there").wait_for()
    page.get_by_text("looked at 25 characters").wait_for()

    # What the base model earns with it.
    page.goto(f"{address}/p/lab/lab/")
    page.get_by_role("link", name="form alone").first.click()
    page.locator("#sample").get_by_label("Problems", exact=True).fill("4")
    page.locator("#sample").get_by_label("Group size G").fill("2")
    page.locator("#sample").get_by_label("Max completion tokens").fill("32")
    page.get_by_role("button", name="Sample and score").click()
    page.get_by_text(re.compile(r"\d of 4 prompts carry no signal at this G")).wait_for(timeout=10 * MINUTES)

    # Probed, and blocked at launch.
    page.get_by_role("link", name="Back to the lab").click()
    page.locator("#probe").get_by_label("Problems", exact=True).fill("2")
    page.locator("#ask-probe").click()
    page.locator("#verdict").wait_for(timeout=10 * MINUTES)
    assert "rewards wrong answers" in page.locator("#verdict").inner_text()
    page.goto(f"{address}/p/lab/runs/new/?preset=demo")
    page.locator("#f-name").fill("warm-up")
    choose(page, "dataset", "additions")
    choose(page, "verifier_version", "form alone")
    page.locator("#f-optim-steps").fill("2")
    page.locator("#reward-gate").get_by_text("rewards wrong answers").wait_for()
    page.get_by_text("every setting is valid").wait_for()
    page.get_by_role("button", name="Launch").click()
    page.locator("#override-said .error-text").wait_for()

    # Launched for a reason, which the record shows.
    page.get_by_label("Reason for the override").fill(REASON)
    page.get_by_role("button", name="Launch").click()
    page.wait_for_url(re.compile(r"/p/lab/runs/\d+/$"))
    assert REASON in page.locator("#reward-at-launch").inner_text()
    page.locator("#card-link").wait_for(timeout=20 * MINUTES)
    page.locator(".tabs").get_by_role("link", name=re.compile("^Record")).click()
    page.locator("#record-seal").wait_for()
    assert REASON in page.locator("#content").inner_text()


def drawn_points(page: Any) -> int:
    """Steps that the reward chart has drawn (its last trace only marks the newest)."""
    chart = "() => document.querySelector('[data-chart=reward] .plot')?.data?.at(-2)?.x?.length ?? 0"
    return int(page.evaluate(chart))


def until(page: Any, ask: Callable[[], int], *, at_least: int) -> int:
    """Ask again and again; the page's CSP forbids Playwright's own way of waiting for an expression."""
    for _ in range(3000):
        if (number := ask()) >= at_least:
            return number
        page.wait_for_timeout(200)
    raise AssertionError(f"{ask()}, not {at_least}")


def fetched(address: str) -> str:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(address, timeout=20) as reply:
            return str(reply.read().decode())
    except urllib.error.HTTPError:
        return ""
