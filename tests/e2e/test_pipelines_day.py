"""A short form of DeepSeek-R1 in a real browser and with a real worker: cold start, GRPO, rejection sampling,
fine-tuning, a reward model, GRPO with rule and reward model, distillation. Each stage ends in a sealed record, and the
pipeline's card passes the check without a network.

COHORT_TEST_SCREENSHOTS names a folder to keep pictures of the pages in.
"""

import json
import re
import zipfile
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser import picture
from tests.e2e.person import MINUTES
from tests.e2e.test_researchers_day import checked, prepare
from tests.e2e.test_whole_system import signed_in_with_the_demo
from tests.needs import needs
from tests.processes import cohort, grpo

pytestmark = pytest.mark.slow

RULE = "{components: [{name: right, kind: numeric}]}"
HERE = "engine: {device: cpu, threads: 1}"
MEASURED = f"""eval:
      {{path: additions held out, reward: {RULE}, before: true, after: true, temperature: 1.0,
       max_completion_tokens: 64, cost: 0}}"""
SAMPLED = f"""reward: {RULE}
    sampling: {{group_size: 4, prompts_per_step: 64, max_completion_tokens: 64}}
    {HERE}"""
TEXT = f"""name: short r1
stages:
  cold_start:
    kind: sft
    model: {{path: adder}}
    data: {{path: worked}}
    optim: {{steps: 4, lr: 5.0e-4}}
    {MEASURED}
    {HERE}
  rl:
    kind: grpo
    preset: demo
    model: {{stage: cold_start}}
    data: {{path: additions}}
    reward: {RULE}
    optim: {{steps: 3}}
    {MEASURED}
    {HERE}
  kept:
    kind: sample
    model: {{stage: rl}}
    data: {{path: additions, limit: 128}}
    {SAMPLED}
  pairs:
    kind: sample
    rows: pairs
    model: {{stage: rl}}
    data: {{path: additions, limit: 128}}
    seed: 1
    {SAMPLED}
  again:
    kind: sft
    model: {{path: adder}}
    data: {{stage: kept, more: [worked]}}
    optim: {{steps: 4, lr: 5.0e-4}}
    {MEASURED}
    {HERE}
  judge:
    kind: reward_model
    model: {{stage: again}}
    data: {{stage: pairs, holdout: 8}}
    optim: {{steps: 4, batch_size: 8, lr: 3.0e-4}}
    {HERE}
  rl_again:
    kind: grpo
    preset: demo
    model: {{stage: again}}
    data: {{path: additions}}
    reward:
      components:
        - {{name: right, kind: numeric}}
        - {{name: judged, kind: reward_model, weight: 0.2, params: {{stage: judge, transform: sigmoid}}}}
    optim: {{steps: 3}}
    {MEASURED}
    {HERE}
  answers:
    kind: sample
    model: {{stage: rl_again}}
    data: {{path: additions, limit: 128}}
    {SAMPLED}
  student:
    kind: distill
    model: {{path: student}}
    data: {{stage: answers}}
    optim: {{steps: 4, lr: 1.0e-3}}
    {MEASURED}
    {HERE}
"""
STAGES = re.findall(r"^  (\w+):$", TEXT, re.MULTILINE)


def test_r1_from_yaml_to_a_card_that_verifies(cohort_home: Path, tmp_path: Path) -> None:
    needs("bwrap")
    grpo("cold-start", "--out", str(cohort_home / "models" / "student"), "--steps", "40", "--layers", "1")
    with signed_in_with_the_demo(cohort_home, tmp_path, cold_steps="120") as (alice, _):
        grpo("demo-data", "--worked", "200", "--out", str(tmp_path / "worked"))
        (tmp_path / "worked/add-worked.jsonl").rename(tmp_path / "add-worked.jsonl")
        prepare(alice)
        alice.register_model("student")
        alice.upload("worked", "add-worked.jsonl")
        page = alice.page
        page.goto(f"{alice.address}/p/lab/pipelines/new/")
        page.locator("textarea").fill(TEXT.replace("stage: rl}", "stage: student}", 1))
        page.get_by_role("button", name="Make the pipeline").click()
        expect(page.locator("#content")).to_contain_text("student → ")  # a circle, which is named
        page.locator("textarea").fill(TEXT)
        page.get_by_role("button", name="Make the pipeline").click()
        page.wait_for_url(re.compile(r"/pipelines/\d+/$"))
        address = page.url
        page.locator("#override").fill("The rewards are of this test alone.")
        page.get_by_role("button", name="Start").click()
        expect(page.locator("#pipeline")).to_contain_text("started")
        picture(page, "pipeline-started")
        make = page.get_by_role("button", name="Make the pipeline’s card")
        make.wait_for(timeout=25 * MINUTES)
        expect(page.locator("#pipeline .page-head")).to_contain_text("finished")
        checked(page, "pipeline-finished")
        make.click()
        link = page.locator("#card").get_by_role("link", name="Download")
        link.wait_for(timeout=5 * MINUTES)
        with page.expect_download() as downloading:
            link.click()
        card = tmp_path / "pipeline.zip"
        downloading.value.save_as(card)
        page.goto(f"{address}stages/student/")
        checked(page, "pipeline-stage")
    verified = cohort("verify", str(card), "--offline", COHORT_HOME=str(cohort_home))
    assert verified.returncode == 0, verified.stdout + verified.stderr
    with zipfile.ZipFile(card) as archive:
        document = json.loads(archive.read("pipeline.json"))
    assert sorted(stage["name"] for stage in document["stages"]) == sorted(STAGES)
    assert all(stage["seal"] for stage in document["stages"])
    compared = {(row["from"], row["to"]): row["comparisons"][0]["why_not"] for row in document["changes"]}
    assert {("base", "cold_start"), ("cold_start", "rl"), ("base", "rl"), ("again", "rl_again")} <= compared.keys()
    assert set(compared.values()) == {""}
