"""Every function of the platform that writes leaves an entry in the audit log, by reading the source of all of them. A
new one cannot forget it without failing here; test_audit_walk.py calls those of people, catalog, nodes and runs."""

from tests.web.governance.call_graph import EXEMPT, FOUND, logged, writing


def test_every_function_that_writes_comes_to_the_log_or_says_why_not() -> None:
    silent = {name for name in writing(FOUND) if not logged(FOUND, name)}
    assert sorted(silent - EXEMPT.keys()) == [], "call audit.log in these, or say in EXEMPT why not"
    assert sorted(EXEMPT.keys() - silent) == [], "these log by now, or are gone: take them out of EXEMPT"


def test_the_reading_finds_writes_and_follows_calls() -> None:
    """So that the test above means something."""
    found = set(writing(FOUND))
    assert {"cohort.accounts.services.membership_remove", "cohort.runs.services.steering.run_cancel"} <= found
    assert {"cohort.catalog.services.dataset_create", "cohort.runs.pulse.pulse"} <= found, "by private functions too"
    assert "cohort.runs.selectors.queue.waiting_rows" not in found
    assert not logged(FOUND, "cohort.runs.pulse.pulse")
