"""What a test of the whole system in a browser begins with: a base model and problems, a real `cohort up` with its
workers, and somebody who has signed in."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.browser import PATIENCE, chromium
from tests.processes import Started, cohort, grpo, up

COLD_STEPS = os.environ.get("COHORT_TEST_COLD_STEPS", "24")
MINUTES = 60_000  # Playwright counts milliseconds


@dataclass(frozen=True)
class Person:
    """Alice, a researcher of the project lab, before the page that follows her signing in."""

    page: Any
    address: str
    password: str
    data: Path
    """Folder of the demo's problems."""

    def register_model(self) -> None:
        """The demo's base model, as adder."""
        self.page.goto(f"{self.address}/p/lab/models/new/")
        self.page.locator("#id_name").fill("adder")
        self.page.locator("#id_path").fill("adder")
        self.page.get_by_role("button", name="Register").click()
        self.page.get_by_role("heading", name="adder").wait_for()

    def upload(self, name: str, file: str) -> None:
        """A dataset of one of the demo's files."""
        self.page.goto(f"{self.address}/p/lab/datasets/new/")
        self.page.locator("#id_name").fill(name)
        self.page.locator("#id_file").set_input_files(self.data / file)
        self.page.get_by_role("button", name="Check and store").click()
        self.page.get_by_role("heading", name=name, exact=True).wait_for()


@contextmanager
def signed_in(home: Path, data: Path) -> Iterator[tuple[Person, Started]]:
    """Within it everything runs; the second value is `cohort up`. Afterwards the console must have shown no error."""
    grpo("cold-start", "--out", str(home / "models" / "adder"), "--steps", COLD_STEPS)
    grpo("demo-data", "--out", str(data))
    faults: list[str] = []
    with up(home) as (started, address), chromium() as browser:
        made = cohort("user", "alice", "--project", "lab", "--home", str(home))
        password = re.search(r"password (\S+)", made.stdout)
        assert password is not None, made.stderr
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda told: faults.append(told.text) if told.type == "error" else None)
        page.goto(address)
        page.locator("#id_username").fill("alice")
        page.locator("#id_password").fill(password[1])
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/p/lab/runs/")
        yield Person(page, address, password[1], data), started
    unexpected = [text for text in faults if not expected(text)]
    assert not unexpected, unexpected


def expected(text: str) -> bool:
    """A form that is refused is answered 422, which the console counts as an error. And htmx tells of a request that
    the next page put an end to; one that failed is told as another event."""
    return "status of 422" in text or text.startswith(("htmx:afterRequest", "htmx:sendAbort"))
