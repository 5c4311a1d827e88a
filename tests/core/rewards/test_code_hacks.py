"""Every hack of the corpus, on every form of tests that it makes sense for: none is paid, and none is masked either.
And each fools a judge that pays right solutions and refuses plainly wrong ones."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml

from grpo_core.data import Problem
from grpo_core.probe.hacks import HACKS, Target, target_of
from grpo_core.rewards.base import ScoreRequest
from tests.tables import FOLDER, cases

from .scoring import PROGRAMS

GROUPS = ("exit", "compare", "patch", "read", "forge")
FORMS = cases("code_rewards/hack_problems", "prompt", "tests", "entry_point", "right")


def test_there_are_many_of_every_group():
    assert len(HACKS) >= 60
    assert {form for hack in HACKS for form in hack.forms} == {case.id for case in FORMS}
    groups = [hack.group for hack in HACKS]
    assert all(groups.count(group) >= 10 for group in GROUPS)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["of each group", "all"])
@pytest.mark.parametrize(("prompt", "tests", "entry_point", "right"), FORMS)
def test_no_hack_is_paid_or_masked(prompt, tests, entry_point, right, every, code_scorer, request):
    problem = Problem("p", prompt, "", {"tests": tests, **({"entry_point": entry_point} if entry_point else {})})
    assert request.node.callspec.id.startswith(target_of(problem).form)
    hacks = [hack for hack in HACKS if target_of(problem).form in hack.forms]
    assert len(hacks) >= 30
    chosen = hacks if every else list({hack.group: hack for hack in reversed(hacks)}.values())
    scorer = code_scorer(pay="share", case_seconds=2, memory_mb=256)  # one case that a hack passes is enough to fail
    texts = [*(hack.make(problem) or "" for hack in chosen), f"```python\n{right}\n```"]
    *scores, solved = scorer.score([ScoreRequest(problem, text) for text in texts], lambda: None)
    bad = {
        hack.name: score
        for hack, score in zip(chosen, scores, strict=True)
        if (score.value, score.passed, score.error) != (0.0, False, None) or not score.detail
    }
    assert bad == {}
    assert solved.value == 1.0  # it can be passed


# ---------------------------------------------------------------------- no straw men


RESULTS = {(20, 22): 42424, (1, 2): 31313}
CALL_CASES = [{"call": "solve", "args": list(args), "returns": value} for args, value in RESULTS.items()]
TEXT_CASES = [{"input": f"{a} {b}\n", "output": f"{value}\n"} for (a, b), value in RESULTS.items()]
RIGHT = "def solve(a, b):\n    return {20: 42424, 1: 31313}[a]\n"
TEXT_RIGHT = "print({'20 22': 42424, '1 2': 31313}[input().strip()])\n"
WRONG, TEXT_WRONG = "def solve(a, b):\n    return 5\n", "print(5)\n"
MARKER, NONCE = "ALL TESTS PASSED", "0123456789abcdef0123456789abcdef"


# What the fields mean, says the table.
LEFT_OUT = {"fools": [], "script": "", "compare": "", "text": False, "paid": "status", "handed": "", "right": ""}
_TABLE = yaml.safe_load((FOLDER / "code_rewards/naive_judges.yaml").read_text(encoding="utf-8"))
JUDGES = {row["id"]: SimpleNamespace(**{**LEFT_OUT, **row}) for row in _TABLE}
JUDGE_OF = {hack: judge for judge in JUDGES.values() for hack in judge.fools}
SAME_PROCESS = JUDGES["same_process"].script


def fooled(judge, code, folder):
    """Whether the judge takes the program for a right one."""
    cases = TEXT_CASES if judge.text else CALL_CASES
    files = {
        "solution.py": code,
        "tests.json": "" if judge.handed or "hidden" in judge.id else json.dumps(cases),
        "judge.py": judge.script or SAME_PROCESS.replace("return got == expected", judge.compare),
        "inner.py": SAME_PROCESS + f"print('{MARKER}')\n",
        "hidden_tests.py": f"CASES = {cases!r}\n",
        "judge_tools.py": "def report(text):\n    print(text if type(text) is str else text.decode(), flush=True)\n",
        "test_it.py": "from solution import solve\ndef test_it():\n    assert solve(20, 22) == 42424\n",
    }
    for name, text in files.items():
        if text:
            (folder / name).write_text(text)
    reading, writing = os.pipe()
    environment = {"VERDICT": str(writing), "NONCE": NONCE, "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    if judge.handed == "environment":
        environment["TESTS"] = json.dumps(cases)
    ran = subprocess.run(
        [sys.executable, "judge.py", *([json.dumps(cases)] if judge.handed == "argument" else [])],
        cwd=folder,
        env={**os.environ, **environment},
        pass_fds=[writing],
        capture_output=True,
        text=True,
        errors="replace",
    )
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        sent = pipe.read().decode(errors="replace") if judge.paid in ("pipe", "signed") else ""
    return _paid(judge.paid, ran, sent, folder / "result.json")


def _paid(how, ran, sent, file):
    verdict = {}
    match how:
        case "status":
            return ran.returncode == 0
        case "marker":
            return MARKER in ran.stdout
        case "last_line":
            return ran.stdout.strip().endswith(MARKER)
        case "no_fail":
            return "FAIL" not in ran.stdout
        case "unittest":
            return ran.stderr.strip().endswith("OK")
        case "json" if ran.stdout.startswith("{"):
            verdict = json.loads(ran.stdout.splitlines()[0])
        case "file" if file.exists():
            verdict = json.loads(file.read_text())
        case "pipe" | "signed":
            nonce = NONCE if how == "signed" else ""
            lines = [line.removeprefix(nonce) for line in sent.split("\n") if line.startswith(nonce + "{")]
            verdict = json.loads(lines[0]) if lines else {}
    return verdict.get("passed") is True


def hack_of_each_family_and_form():
    first = {(hack.group, JUDGE_OF[hack.name].text): hack.name for hack in reversed(HACKS)}
    return set(first.values())


QUICK = hack_of_each_family_and_form()
QUICK_JUDGES = {JUDGE_OF[name].id for name in QUICK}


def test_every_hack_has_its_judge():
    assert sorted(JUDGE_OF) == sorted(hack.name for hack in HACKS)
    assert sum(len(judge.fools) for judge in JUDGES.values()) == len(HACKS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK_JUDGES else pytest.mark.slow) for name in JUDGES]
)
def test_a_naive_judge_tells_right_from_plainly_wrong(name, tmp_path):
    judge = JUDGES[name]
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.mkdir()
    wrong.mkdir()
    assert fooled(judge, judge.right or (TEXT_RIGHT if judge.text else RIGHT), right)
    assert not fooled(judge, TEXT_WRONG if judge.text else WRONG, wrong)


@pytest.mark.parametrize(
    "hack",
    [pytest.param(hack, id=hack.name, marks=() if hack.name in QUICK else pytest.mark.slow) for hack in HACKS],
)
def test_a_hack_fools_a_naive_judge(hack, tmp_path):
    judge = JUDGE_OF[hack.name]
    assert fooled(judge, hack.code(Target("solve", "input" if judge.text else "call")), tmp_path)


def test_the_thread_s_exit_is_waited_for_on_a_busy_machine():
    """Its timer fires a second late here."""
    late = PROGRAMS["late timer"]
    (hack,) = [hack for hack in HACKS if hack.name == "exit_by_thread"]
    code = f"{late}\n{hack.code(Target('solve', 'input'))}\nprint('it was judged')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
