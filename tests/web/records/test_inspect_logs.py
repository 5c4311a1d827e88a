"""A record's evaluations as logs of Inspect: what each holds, for whom, and that Inspect itself reads them."""

import io
import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cohort.cli.main import main
from cohort.evaluations.imports import inspect_log
from cohort.records.after_seal.services import revoke
from cohort.records.models import Record
from tests.factories import sealed_run
from tests.needs import INSPECT_PYTHON, needs
from tests.web.records.conftest import World
from tests.web.records.records import logged, saved

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_pdf")]
NAMES = ["before-001-heldout.json", "after-001-heldout.json"]
_READ = """
import sys
from inspect_ai.log import read_eval_log
for path in sys.argv[1:]:
    log = read_eval_log(path)
    metrics = {name: metric.value for name, metric in log.results.scores[0].metrics.items()}
    print(log.status, log.eval.task, len(log.samples), metrics["mean"], log.samples[0].scores["score"].value)
"""


def logs_for(world: World, record: Record, audience: str, *, who: str = "rita") -> dict[str, dict[str, Any]]:
    url = f"/p/ours/runs/{record.run_id}/record/{record.end}/{record.version}/evaluations-{audience}.zip"
    content = b"".join(world.client(who).get(url))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: json.loads(archive.read(name)) for name in archive.namelist()}


def test_a_log_for_each_side_has_every_item_and_the_records_score(sealed: Record, world: World) -> None:
    logs = logs_for(world, sealed, "downstream")
    assert list(logs) == NAMES
    for name, scores, share in (("before-001-heldout.json", sealed_run.BEFORE, 0.3), (NAMES[1], sealed_run.AFTER, 0.8)):
        log = logs[name]
        assert [sample["scores"]["score"]["value"] for sample in log["samples"]] == scores
        assert log["results"]["scores"][0]["metrics"]["mean"]["value"] == share
        assert log["eval"]["metadata"]["seal"] == sealed.seal
        assert log["eval"]["metadata"]["revoked"] is None
        (mean,) = [row for row in inspect_log.read(log, name) if row.metric.endswith("mean")]
        assert (mean.task, mean.value, mean.n) == ("heldout", share, 100)
        assert mean.samples is not None
        assert mean.samples["mean"] == pytest.approx(share)
    assert logs[NAMES[1]]["eval"]["model"].endswith(f"trained by run {sealed.run_id}")
    assert logs[NAMES[1]]["samples"][0]["output"]["completion"] == sealed_run.HOSTILE
    (body,) = logged("evaluations_downloaded")
    assert (body["actor"], body["data"]["audience"]) == ("user:rita", "downstream")


def test_texts_that_a_card_withholds_are_in_no_log_for_it(sealed: Record, world: World) -> None:
    for log in logs_for(world, sealed, "public").values():
        assert sealed_run.HOSTILE not in json.dumps(log, ensure_ascii=False)
        assert {sample["input"] for sample in log["samples"]} == {""}
        assert log["samples"][0]["metadata"]["texts"].startswith("withheld")


def test_a_revoked_record_says_so_in_each_log(sealed: Record, world: World) -> None:
    revoke(record=sealed, actor=world.alice, reason="The reward paid wrong answers.")
    for log in logs_for(world, sealed, "public").values():
        assert log["eval"]["metadata"]["revoked"] == "The reward paid wrong answers."


def test_the_command_writes_the_same_logs(
    sealed: Record, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card, folder = saved(sealed.card("downstream"), tmp_path), tmp_path / "logs"
    assert main(["inspect-logs", str(card), str(folder)]) == 0
    assert f"2 logs in {folder}" in capsys.readouterr().out
    of_the_page = logs_for(world, sealed, "downstream")
    for name in NAMES:
        log = json.loads((folder / name).read_text())
        assert log["samples"] == of_the_page[name]["samples"]
    assert main(["inspect-logs", str(card), str(folder)]) != 0
    assert "is there already" in capsys.readouterr().err
    assert main(["inspect-logs", str(folder / NAMES[0]), str(tmp_path / "more")]) != 0
    assert "cannot be read as a card" in capsys.readouterr().err


@pytest.mark.slow
def test_inspect_reads_them(sealed: Record, tmp_path: Path) -> None:
    needs("inspect")
    for audience in ("public", "downstream"):
        folder = tmp_path / audience
        assert main(["inspect-logs", str(saved(sealed.card(audience), tmp_path)), str(folder)]) == 0
        command = [str(INSPECT_PYTHON), "-c", _READ, *(str(folder / name) for name in NAMES)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.stdout.splitlines() == ["success heldout 100 0.3 1.0", "success heldout 100 0.8 1.0"], done.stderr
