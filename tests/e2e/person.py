"""A person with a real browser at a whole Cohort in one home, started as `cohort up` does."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.browser import PATIENCE, chromium
from tests.processes import Started, cohort, up

MINUTES = 60_000  # Playwright counts milliseconds


@dataclass(frozen=True)
class Person:
    """Alice, a researcher of the project lab, before the page that follows her signing in."""

    page: Any
    address: str
    password: str
    data: Path
    """Folder with the files that she uploads."""

    def register_model(self, folder: str) -> None:
        """The base model in this folder of the home's models, under its name."""
        self.page.goto(f"{self.address}/p/lab/models/new/")
        self.page.locator("#id_name").fill(folder)
        self.page.locator("#id_path").fill(folder)
        self.page.get_by_role("button", name="Register").click()
        self.page.get_by_role("heading", name=folder).wait_for()

    def upload(self, name: str, file: str) -> None:
        """A dataset of one of her files."""
        self.page.goto(f"{self.address}/p/lab/datasets/new/")
        self.page.locator("#id_name").fill(name)
        self.page.locator("#id_file").set_input_files(self.data / file)
        self.page.get_by_role("button", name="Check and store").click()
        self.page.get_by_role("heading", name=name, exact=True).wait_for()


@contextmanager
def signed_in(home: Path, data: Path) -> Iterator[tuple[Person, Started]]:
    """Within it everything runs; the second value is `cohort up`. Afterwards the console must have shown no error."""
    faults: list[str] = []
    with up(home) as (started, address), chromium() as browser:
        made = cohort("user", "alice", "--project", "lab", "--home", str(home))
        password = re.search(r"password (\S+)", made.stdout)
        assert password is not None, made.stderr
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
        page.goto(address)
        page.locator("#id_username").fill("alice")
        page.locator("#id_password").fill(password[1])
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/p/lab/")
        yield Person(page, address, password[1], data), started
    # A form that is refused is answered 422, which the console counts as an error. And htmx tells of a request that the
    # next page put an end to; one that failed is told as another event.
    expected = ("htmx:afterRequest", "htmx:sendAbort")
    assert [text for text in faults if "status of 422" not in text and not text.startswith(expected)] == []


def choose(page: Any, select: str, text: str) -> None:
    """Choose the option whose label is `text`, or begins with it and a separator."""
    labels = page.locator(f"select[name={select}] option").all_inner_texts()
    label = next(name for name in labels if name == text or name.startswith((f"{text} ·", f"{text} v")))
    page.locator(f"select[name={select}]").select_option(label=label)
