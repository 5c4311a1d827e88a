"""`grpo probe`: statuses, places, and a clear word for each bad input."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from grpo_core.cli import main
from grpo_core.probe.report import ProbeReport

SOUND = {"components": [{"name": "right", "kind": "exact"}]}
FORM = {"components": [{"name": "form", "kind": "r1_format"}]}


def file(folder: Path, told: object, name: str = "reward.yaml") -> str:
    path = folder / name
    path.write_text(told if isinstance(told, str) else yaml.safe_dump(told), encoding="utf-8")
    return str(path)


def problems(folder: Path, *rows: dict[str, object]) -> str:
    return file(folder, "".join(json.dumps(row) + "\n" for row in rows), "data.jsonl")


def test_a_sound_reward(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", file(tmp_path, SOUND)]) == 0
    said = capsys.readouterr().out
    assert "20 of 46 built-in problems" in said
    assert "verdict: clean" in said
    assert "words for digits (forty-two)" in said


def test_one_that_pays_the_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.json"
    assert main(["probe", file(tmp_path, {"reward": FORM}), "--problems", "7", "--out", str(out)]) == 20
    said = capsys.readouterr().out
    assert "verdict: PAYS WRONG ANSWERS" in said
    assert "pays 7 of 7: the right form with a wrong answer (form_wrong)" in said
    report = ProbeReport.from_json(json.loads(out.read_text()))
    assert report.problems == 7
    assert report.verdict == "pays_wrong"


def test_on_a_dataset_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = problems(tmp_path, {"prompt": "2 + 2?", "answer": "4"}, {"prompt": "3 + 4?", "answer": "7"})
    assert main(["probe", file(tmp_path, SOUND), "--data", data, "--json"]) == 0
    report = ProbeReport.from_json(json.loads(capsys.readouterr().out))
    assert (report.problems_source, report.problems, report.subjects) == ("data", 2, {"number": 2})
    assert report.of("plus_one").examples[0].problem_id == "line-1"


def test_a_config_brings_its_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problems(tmp_path, {"prompt": "2 + 2?", "answer": "4"})
    config = {
        "model": {"path": "nowhere"},
        "data": {"path": "data.jsonl"},
        "reward": SOUND,
        "eval": {"before": False, "after": False},
    }
    assert main(["probe", file(tmp_path, config), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == 1
    assert main(["probe", file(tmp_path, config), "--builtin", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problems_source"] == "builtin"


def test_a_reward_that_refuses_the_reference_answers(tmp_path: Path) -> None:
    data = problems(tmp_path, *({"prompt": "?", "answer": "Oslo", "id": str(place)} for place in range(5)))
    wrong = {"components": [{"name": "right", "kind": "exact", "params": {"extract": "last_number"}}]}
    assert main(["probe", file(tmp_path, wrong), "--data", data]) == 21


def test_a_reward_that_cannot_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = problems(tmp_path, {"prompt": "?", "answer": "Oslo"})
    assert main(["probe", file(tmp_path, {"components": [{"name": "a", "kind": "numeric"}]}), "--data", data]) == 22
    said = capsys.readouterr().out
    assert "verdict: undecided" in said
    assert "'Oslo' is not a number" in said


@pytest.mark.parametrize(
    ("told", "options", "status", "words"),
    [
        ("components: [", [], 2, "is not valid YAML"),
        ({"components": []}, [], 2, "reward.components"),
        ({"components": [{"name": "a", "kind": "exat"}]}, [], 2, "reward.components.0.kind"),
        ({"components": [{"name": "a", "kind": "exact", "params": {"extract": "x"}}]}, [], 2, "params.extract"),
        ({"reward": FORM, "data": {"path": "a"}}, [], 2, "model"),
        (SOUND, ["--data", "missing.jsonl"], 3, "no such data file: missing.jsonl"),
        (SOUND, ["--format", "gsm8k"], 2, "give --data too"),
        (SOUND, ["--builtin", "--data", "a"], 2, "give one of them"),
        (SOUND, ["--out", "/nowhere/report.json"], 2, "cannot write /nowhere/report.json"),
        ({"components": [{"name": "task", "kind": "reasoning_gym"}]}, [], 3, "reads the field"),
    ],
)
def test_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], told: object, options: list[str], status: int, words: str
) -> None:
    assert main(["probe", file(tmp_path, told), *options]) == status
    assert words in capsys.readouterr().err


def test_no_such_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "/nowhere/reward.yaml"]) == 2
    assert "no such file: /nowhere/reward.yaml" in capsys.readouterr().err


def test_no_problems_at_all_are_refused() -> None:
    with pytest.raises(SystemExit):
        main(["probe", "reward.yaml", "--problems", "0"])


def test_a_probe_loads_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom grpo_core.cli import main\n"
        f"status = main(['probe', {file(tmp_path, SOUND)!r}, '--problems', '3'])\n"
        "heavy = {'torch', 'transformers', 'numpy'} & set(sys.modules)\nassert status == 0 and not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
