"""One run over two hosts with DeepSpeed: weights divided between machines, the same losses as in one plain process."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.chaos.hosts import hosts, over_both
from tests.core.deepspeed_runs import alike
from tests.core.runs import PLAIN, Setting, forked, make_home, merged
from tests.needs import DEEPSPEED_PYTHON, needs

pytestmark = pytest.mark.deepspeed


@pytest.mark.parametrize("stage", [2, 3])
def test_a_run_over_two_hosts_learns_what_one_process_learns(tmp_path: Path, stage: int) -> None:
    needs("deepspeed")
    needs("namespaces")
    home = make_home(tmp_path)
    setting = Setting(home, "hosts", merged(PLAIN, {"optim": {"steps": 3}, "eval": {"before": False}}))
    assert forked(["train", str(setting.write()), "--out", str(home / "plain")]) == 0
    path = setting.write(engine={"nodes": 2, "training": "deepspeed", "deepspeed": {"zero_stage": stage}})
    words = [str(DEEPSPEED_PYTHON), "-P", "-m", "grpo_core.cli.main", "train", str(path), "--out", str(home / "out")]
    with hosts(2) as pair:
        done = subprocess.run(pair[0].words(words), env=over_both(pair), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((home / "out" / "manifest.json").read_text())["platform"]["ranks"] == 2
    alike(home / "out", home / "plain")
