"""The page scripts' logic by node's own test runner, with stand-ins for the browser: tests/js/*.test.mjs."""

import shutil
import subprocess
from pathlib import Path

import pytest

FILES = sorted(str(path) for path in (Path(__file__).parents[1] / "js").glob("*.test.mjs"))


def test_page_scripts() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node 20 or newer (Debian: apt-get install nodejs)")
    assert FILES
    done = subprocess.run([node, "--test", *FILES], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
