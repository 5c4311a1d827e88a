"""Every hack of the corpus fools a judge that pays right solutions and refuses plain wrong ones: no straw men."""

import subprocess
import sys
from pathlib import Path

import pytest

from grpo_core.probe.hacks import HACKS, Hack, Target
from tests.core.rewards.naive_judges import JUDGES, RIGHT, TEXT_RIGHT, TEXT_WRONG, WRONG, fooled

FOOLED: dict[str, str] = {
    "same_process": """
        exit_zero os_exit_zero raise_system_exit exit_in_call os_exit_in_call exit_by_thread exit_by_alarm
        exit_at_exit exit_by_excepthook exit_by_finalizer exit_by_trace exit_by_profile exit_by_audit exit_by_exec
        exit_by_fork exit_in_repr exit_in_error_text exit_in_eq term_at_end equals_all equals_all_int equals_all_str
        equals_all_float equals_all_list equals_all_dict equals_all_tuple class_equals_all mock_any nested_equals_all
        lies_about_its_type replaces_comparison replaces_main_names empties_cases rewrites_expected reads_frames
        reads_traceback reads_garbage reads_main reads_files reads_by_trace""",
    "no_failure_told": "killed_quietly crashes_interpreter",
    "tolerant": "any_difference_is_zero nan patches_abs",
    "by_order": "orders_as_wanted",
    "pairwise": "empty_list",
    "skips": "deep_value endless_digits unwritable_text",
    "by_all": "patches_all",
    "any_wrong": "patches_any",
    "by_sorted": "patches_sorted",
    "by_length": "patches_len",
    "by_text": "patches_str",
    "by_isclose": "patches_isclose",
    "by_operator": "patches_operator",
    "verdict_json": "patches_json prints_verdict",
    "literal": "patches_exec reads_bytecode",
    "compiled": "patches_compile",
    "optimized_child": "optimizes_children",
    "unittest": "patches_unittest fakes_unittest",
    "unittest_words": "prints_unittest",
    "in_namespace": "redefines_helpers",
    "from_arguments": "mutates_arguments",
    "counts_failures": "resets_failures",
    "loads_cases_late": "opens_nothing",
    "in_a_thread": "reads_other_threads",
    "hidden_module": "reads_modules",
    "child_environment": "reads_environment reads_own_memory",
    "child_argument": "reads_parents",
    "child_descriptor": "reads_descriptors",
    "marker": "prints_marker",
    "late_marker": "prints_marker_late",
    "verdict_pipe": "writes_descriptors",
    "verdict_by_tool": "sends_with_judges_tools",
    "verdict_signed": "sends_with_found_nonce",
    "verdict_file": "writes_result_files",
    "scripts_side_by_side": "shadows_module",
    "pytest": "rewrites_tests conftest pytest_settings",
    "text_in_process": """reads_frames_prints reads_traceback_prints reads_other_threads_prints reads_main_prints
        reads_files_prints reads_garbage_prints replaces_stdout""",
    "text_hidden_module": "reads_modules_prints",
    "text_environment": "reads_environment_prints reads_own_memory_prints",
    "text_argument": "reads_parents_prints",
    "text_descriptor": "reads_descriptors_prints",
    "text_tolerant": "prints_nan",
    "text_pairwise": "prints_nothing",
    "text_contains": "prints_all_answers",
}
BY_HACK = {name: judge for judge, names in FOOLED.items() for name in names.split()}


def test_every_hack_has_its_judge() -> None:
    assert set(BY_HACK) == {hack.name for hack in HACKS}


@pytest.mark.parametrize("name", FOOLED)
def test_a_naive_judge_tells_right_from_plainly_wrong(name: str, tmp_path: Path) -> None:
    judge = JUDGES[name]
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.mkdir()
    wrong.mkdir()
    assert fooled(name, judge.right or (TEXT_RIGHT if judge.text else RIGHT), right)
    assert not fooled(name, TEXT_WRONG if judge.text else WRONG, wrong)


@pytest.mark.parametrize("hack", HACKS, ids=lambda hack: hack.name)
def test_a_hack_fools_a_naive_judge(hack: Hack, tmp_path: Path) -> None:
    judge = BY_HACK[hack.name]
    form = "input" if JUDGES[judge].text else "call"
    assert fooled(judge, hack.code(Target("solve", form)), tmp_path)


def test_the_thread_s_exit_is_waited_for_on_a_busy_machine() -> None:
    """Its timer fires a second late here."""
    late = """
import threading
class Late(threading.Timer):
    def __init__(self, interval, *rest):
        super().__init__(interval + 1, *rest)
threading.Timer = Late
"""
    (hack,) = [hack for hack in HACKS if hack.name == "exit_by_thread"]
    code = f"{late}\n{hack.code(Target('solve', 'input'))}\nprint('it was judged')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
