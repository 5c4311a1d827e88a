"""The page scripts' logic by node's own test runner, with stand-ins for the browser: tests/js/*.test.mjs."""

import subprocess
from pathlib import Path

from tests.needs import needs

FILES = sorted(str(path) for path in (Path(__file__).parents[1] / "js").glob("*.test.mjs"))


def test_page_scripts() -> None:
    needs("node")
    assert FILES
    done = subprocess.run(["node", "--test", *FILES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
