"""The stored samples of a run on their way to a job that re-scores them, and their scores on the way back.

Each turn makes one call at most of each kind, and a call that gets no answer is made again on a later turn: the job
scores what it has meanwhile. What the platform has taken is removed; a worker that dies leaves nothing to send.
"""

import logging

from grpo_core.lab.rescore import PageExchange
from worker.platform_client.client import JobLink, Meanwhile, Unreachable

log = logging.getLogger(__name__)


class PageTransfer:
    def __init__(self, link: JobLink, exchange: PageExchange) -> None:
        self._link, self._exchange = link, exchange
        self._after: int | None = None
        """The last group of the newest page."""
        self._pages = 0

    def turn(self) -> bool:
        """Send the oldest scores and fetch a page where there is room. Returns whether there may be more to do at
        once. Raises Refused."""
        try:
            sent, fetched = self._send(), self._fetch()
        except Unreachable as error:
            log.warning("samples to score again: %s", error)
            return False
        return sent or fetched

    def drain(self, *, patience: float, meanwhile: Meanwhile) -> None:
        """Send all scores that are left. Raises Refused, Unreachable."""
        while self._send(patience, meanwhile):
            pass

    def _send(self, patience: float = 0.0, meanwhile: Meanwhile = lambda: None) -> bool:
        scores = self._exchange.scores()
        if scores is None:
            return False
        file, groups = scores
        self._link.scores(groups, patience=patience, meanwhile=meanwhile)
        file.unlink()
        return True

    def _fetch(self) -> bool:
        if not self._exchange.has_room:
            return False
        page = self._link.page(self._after)
        self._exchange.send(page, self._pages)
        if page.groups:
            self._after = page.groups[-1].group
            self._pages += 1
        return bool(page.groups)
