"""`make demo`, whole and with its defaults: accuracy after training is above accuracy before, the intervals do not
overlap, and the card is accepted.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs
from tests.processes import clean_environment, cohort

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_demo_learns_and_its_card_verifies(cohort_home: Path) -> None:
    needs("make")
    # This environment is the one to be tested, so it is not made anew.
    words = ["make", "--old-file=.venv/.made-from", "demo", f"BIN={Path(sys.executable).parent}"]
    words += [f"COHORT_HOME={cohort_home}", "PORT=0"]
    run: dict[str, Any] = {"env": clean_environment("MAKE"), "stdin": subprocess.DEVNULL, "cwd": ROOT}
    done = subprocess.run(words, **run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    interval = r"^{} training +\S+ right \(\d+ of 512; 95 % interval (\S+)% to (\S+)%\)$"
    before, after = (re.search(interval.format(when), done.stdout, re.MULTILINE) for when in ("before", "after"))
    assert before, done.stdout
    assert after, done.stdout
    assert float(after[1]) > float(before[2])
    card = re.search(r"^card +(\S+\.zip)$", done.stdout, re.MULTILINE)
    assert card, done.stdout
    checked = cohort("verify", card[1])
    assert checked.returncode == 0, checked.stdout + checked.stderr
