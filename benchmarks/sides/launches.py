"""How long a launch takes: from the run form's POST to its answer, and until the new run's page has come too, with a
stock of runs. `web_load.py --part launch` calls it.

Each launch opens the form, as a browser does, and sends all of it. Nothing else happens: no worker claims the runs.
"""

import http.client
import re
import statistics
import time
from http.cookies import SimpleCookie
from urllib.parse import urlencode

from cohort_web import CohortWeb, signed_in
from runs_list import prepare

P95_MS = 1000
NEW = "/p/ours/runs/new/"


def main(web: CohortWeb, *, count: int, rounds: int) -> int:
    from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
    from tests.factories.runs import UNPROBED

    prepare(web, count)
    session = signed_in("oscar")[0]
    chosen = {
        "base_model": BaseModel.objects.get().pk,
        "dataset": PromptDataset.objects.get(name="additions").pk,
        "verifier_version": VerifierVersion.objects.get().pk,
        "eval.holdout": 4,
        "probe_override": UNPROBED,
        "action": "launch",
    }
    web.start()
    form = LaunchForm(web.port, session)
    for _ in range(3):
        form.launch(chosen)
    took = [form.launch(chosen) for _ in range(rounds)]
    print(f"{'launch, ' + format(count, ',') + ' runs':28} {'median, ms':>11} {'p95, ms':>8} {'longest, ms':>12}")
    for name, seconds in zip(
        ("POST to its answer", "until the run's page is there"), zip(*took, strict=True), strict=True
    ):
        ms = [1000 * each for each in seconds]
        print(f"{name:28} {statistics.median(ms):11.1f} {_p95(ms):8.1f} {max(ms):12.1f}")
    answer, page = (_p95([1000 * each for each in seconds]) for seconds in zip(*took, strict=True))
    for name, p95 in (("launch_p95_ms", answer), ("launch_with_page_p95_ms", page)):
        print(f"RESULT {name} {p95:.1f} {P95_MS} {'ok' if p95 < P95_MS else 'miss'}")
    return 0


class LaunchForm:
    """The run form in a browser with one session and one kept connection."""

    def __init__(self, port: int, session: str) -> None:
        self._link = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._cookies = {"sessionid": session}
        self._launched = 0

    def launch(self, chosen: dict[str, object]) -> tuple[float, float]:
        """(seconds of the POST, of it with the page that it leads to). Raises RuntimeError unless a run was made."""
        from tests.web.form_page import as_browser

        _, _, page = self._request("GET", NEW)
        self._launched += 1
        sent = urlencode({**as_browser(page), **chosen, "name": f"launched {self._launched}"})
        began = time.perf_counter()
        status, location, page = self._request("POST", NEW, sent)
        answered = time.perf_counter()
        if status != 302 or not re.fullmatch(r"/p/ours/runs/\d+/", location):
            raise RuntimeError(f"the launch was answered with {status}: {re.findall(r'error-text[^>]*>([^<]*)', page)}")
        status, _, page = self._request("GET", location)
        if status != 200 or f"launched {self._launched}" not in page:
            raise RuntimeError(f"{location} was answered with {status}")
        return answered - began, time.perf_counter() - began

    def _request(self, method: str, address: str, body: str | None = None) -> tuple[int, str, str]:
        """(status, where it leads, text) of the answer, whose cookies are kept."""
        headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in self._cookies.items())}
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        self._link.request(method, address, body, headers)
        answer = self._link.getresponse()
        for line in answer.headers.get_all("Set-Cookie") or ():
            self._cookies |= {name: morsel.value for name, morsel in SimpleCookie(line).items()}
        return answer.status, answer.headers.get("Location", ""), answer.read().decode()


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]
