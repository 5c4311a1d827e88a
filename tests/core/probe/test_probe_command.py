"""`grpo probe`: statuses, the fields that bad input is refused for, and what it reports."""

import json
import subprocess
import sys
from typing import Any

import pytest
import yaml

from grpo_core.cli.main import main
from grpo_core.probe.report import ProbeReport
from tests.tables import cases

SOUND = {"components": [{"name": "right", "kind": "exact"}]}
FORM = {"components": [{"name": "form", "kind": "r1_format"}]}
TWO = ({"prompt": "2 + 2?", "answer": "4"}, {"prompt": "3 + 4?", "answer": "7"})


def file(folder, content, name="reward.yaml"):
    path = folder / name
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return str(path)


def problems(folder, *rows):
    return file(folder, "".join(json.dumps(row) + "\n" for row in rows), "data.jsonl")


def test_prints_the_verdict_and_the_classes_and_writes_a_report(tmp_path, capsys):
    assert main(["probe", file(tmp_path, SOUND)]) == 0
    printed = capsys.readouterr().out
    assert all(words in printed for words in ("20 of 46", "verdict: clean", "forty-two"))
    out = tmp_path / "report.json"  # of a reward that pays the form
    assert main(["probe", file(tmp_path, {"reward": FORM}), "--problems", "7", "--out", str(out)]) == 20
    printed = capsys.readouterr().out
    assert all(words in printed for words in ("REWARDS WRONG ANSWERS", "rewards 7 of 7", "form_wrong"))
    report = ProbeReport.from_json(json.loads(out.read_text()))
    assert (report.problems, report.verdict) == (7, "pays_wrong")
    assert main(["probe", file(tmp_path, SOUND), "--data", problems(tmp_path, *TWO), "--json"]) == 0
    report = ProbeReport.from_json(json.loads(capsys.readouterr().out))
    assert (report.problems_source, report.problems, report.subjects) == ("data", 2, {"number": 2})
    assert report.of("plus_one").examples[0].problem_id == "line-1"


@pytest.mark.parametrize(("options", "source"), [([], "data"), (["--builtin"], "builtin")])
def test_a_config_brings_its_problems(tmp_path, capsys, options, source):
    problems(tmp_path, TWO[0])
    config: dict[str, Any] = {"model": {"path": "nowhere"}, "data": {"path": "data.jsonl"}, "reward": SOUND}
    config |= {"eval": {"before": False, "after": False}}
    assert main(["probe", file(tmp_path, config), *options, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["problems"] == 1, report["problems_source"]) == (source == "data", source)


@pytest.mark.parametrize(
    ("component", "status"),
    [
        ({"kind": "exact", "params": {"extract": "last_number"}}, 21),  # refuses the reference answers
        ({"kind": "numeric"}, 3),  # cannot read the references
    ],
)
def test_the_status_tells_the_verdict(tmp_path, component, status):
    data = problems(tmp_path, *({"prompt": "?", "answer": "Oslo", "id": str(number)} for number in range(5)))
    reward = {"components": [{"name": "right", **component}]}
    assert main(["probe", file(tmp_path, reward), "--data", data]) == status


@pytest.mark.parametrize(
    ("content", "options", "status", "words"), cases("probe/bad_input", "content", "options", "status", "words")
)
def test_bad_input(tmp_path, capsys, content, options, status, words):
    path = "/nowhere/reward.yaml" if content is None else file(tmp_path, content)
    assert main(["probe", path, *options]) == status
    assert words in capsys.readouterr().err


def test_no_problems_at_all_are_refused():
    with pytest.raises(SystemExit):
        main(["probe", "reward.yaml", "--problems", "0"])


def test_a_probe_loads_no_torch(tmp_path):
    code = (
        "import sys\nfrom grpo_core.cli.main import main\n"
        f"status = main(['probe', {file(tmp_path, SOUND)!r}, '--problems', '3'])\n"
        "heavy = {'torch', 'transformers', 'numpy'} & set(sys.modules)\nassert status == 0 and not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
