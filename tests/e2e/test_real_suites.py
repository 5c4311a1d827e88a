"""A whole run on public evaluation sets: GSM8K, MGSM in three languages and XSTest before and after, with the demo's
model, which can do none of it. The record must say so, with intervals, and claim no change that nobody could see."""

import json
import os
import textwrap
import time
import zipfile
from pathlib import Path

import pytest

from tests.needs import needs
from tests.processes import cohort, grpo, shell, up

pytestmark = pytest.mark.slow

MAKE = """
from pathlib import Path
from cohort.accounts.services import project_create, user_create
from cohort.catalog.services import base_model_register, dataset_create, verifier_version_create
from cohort.catalog.suites import GivenFile, Spec, suite_version_create
from cohort.demo.prepare import REWARD
from cohort.runs.services import run_launch
from cohort.runs.services.suites import ChosenSuite
from grpo_core.evaluate.suites import FORMATS

data, train = Path({data!r}), Path({train!r})
user, _ = user_create(username="ada")
project = project_create(slug="lab", name="Lab", owner=user)
model = base_model_register(project=project, actor=user, name="adder", path="demo-adder")
dataset = dataset_create(project=project, actor=user, name="additions", format="jsonl", chunks=[train.read_bytes()])
reward = verifier_version_create(project=project, actor=user, name="sum", spec=REWARD)

def suite(name, format, files, limit=None):
    known = FORMATS[format]
    spec = Spec(title=known.title, category=known.category, scorer=known.scorer.model_dump(mode="json"),
                higher_is=known.higher_is, sensitive=known.sensitive, margin=0.05)
    given = [GivenFile(name=path.name, content=path.read_bytes()) for path in files]
    return ChosenSuite(suite_version_create(project=project, actor=user, name=name, spec=spec, format=format,
                                            files=given, limit=limit))

suites = [
    suite("gsm8k", "gsm8k", [data / "gsm8k" / "test.jsonl"], 200),
    suite("mgsm", "mgsm", [data / "mgsm" / f"mgsm_{{language}}.tsv" for language in ("de", "sw", "zh")], 20),
    suite("xstest", "xstest", [data / "xstest" / "xstest_prompts.csv"]),
]
run = run_launch(project=project, actor=user, name="Real suites", base_model=model, dataset=dataset,
                 verifier_version=reward, suites=suites,
                 settings={{"preset": "demo", "optim": {{"steps": 2}}, "eval": {{"holdout": 64,
                            "max_completion_tokens": 48}},
                            "data": {{"max_prompt_tokens": 4096}}}})
print(run.pk)
"""
STATE = "from cohort.runs.models import Run; run = Run.objects.get(); print(run.state, run.reason)"
CARD = """
from pathlib import Path
from cohort import artifacts
from cohort.governance.models import Record
Path({path!r}).write_bytes(b"".join(artifacts.read_chunks(Record.objects.get().card().artifact)))
"""


def test_near_zero_scores_are_told_with_their_intervals(cohort_home: Path, tmp_path: Path) -> None:
    needs("gsm8k")
    grpo("cold-start", "--out", str(cohort_home / "models" / "demo-adder"), "--steps", "60")
    grpo("demo-data", "--out", str(tmp_path))
    data = Path(os.environ["COHORT_TEST_DATA"]).resolve()
    with up(cohort_home) as (started, _):
        made = textwrap.dedent(MAKE).format(data=str(data), train=str(tmp_path / "add-train.jsonl"))
        shell(cohort_home, made)

        while (state := shell(cohort_home, STATE)).split()[0] not in ("succeeded", "failed", "cancelled"):
            assert started.process.poll() is None, started.printed
            time.sleep(5)
        assert state.startswith("succeeded"), state + started.printed
        card = tmp_path / "card.zip"
        shell(cohort_home, CARD.format(path=str(card)))
    checked = cohort("verify", str(card))
    assert checked.returncode == 0, checked.stdout + checked.stderr

    with zipfile.ZipFile(card) as archive:
        record = json.loads(archive.read("record.json"))
        items = [json.loads(line) for line in archive.read("evals/after.jsonl").splitlines()]
    found = {one["suite"]: one for one in record["sections"]["behaviour"]["performance"]["value"]}
    assert {name: one["problems"] for name, one in found.items()} == {
        "heldout": 64,
        "gsm8k": 200,
        "mgsm": 60,
        "xstest": 450,
    }
    assert sum(item["suite"] == "xstest" for item in items) == 450
    for name in ("gsm8k", "mgsm"):
        one = found[name]
        for side in (one["before"], one["after"]):
            assert side["share"] <= 0.05, (name, side)
            assert side["interval"]["low"] <= side["share"] < side["interval"]["high"], "an interval, also at 0 of 200"
        assert one["verdict"] not in ("better", "regressed")
    assert {one["slice"] for one in found["mgsm"]["slices"]} == {"de", "sw", "zh"}
    assert found["mgsm"]["change"]["clusters"] == 20
    assert found["xstest"]["non_inferiority"] in ("not_worse", "regressed", "undecided")
