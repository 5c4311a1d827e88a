"""A check which needs something absent cannot vanish unseen; and what .ci/run installs really works here."""

import os
import subprocess

import pytest

from tests import needs as needs_module
from tests.needs import needs


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("COHORT_REQUIRE", raising=False)
    monkeypatch.setattr(needs_module, "present", needs_module.present.__wrapped__)


@pytest.mark.usefixtures("nothing_installed")
def test_what_is_absent_skips_with_what_to_install() -> None:
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        needs("chromium")


@pytest.mark.usefixtures("nothing_installed")
def test_what_is_required_and_absent_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHORT_REQUIRE", "bwrap,chromium")
    with pytest.raises(pytest.fail.Exception, match="COHORT_REQUIRE says it must be here"):
        needs("chromium")
    with pytest.raises(pytest.skip.Exception):
        needs("make")


def test_a_required_name_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt requirement would require nothing."""
    monkeypatch.setenv("COHORT_REQUIRE", "chrome")
    with pytest.raises(pytest.fail.Exception, match="chrome is not one of"):
        needs("bwrap")


def test_bubblewrap_works_without_root() -> None:
    """A sandbox needs namespaces that an unprivileged user may make; some machines forbid them."""
    needs("bwrap")
    words = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]
    if os.geteuid() == 0:
        words = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *words]
    done = subprocess.run(words, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
