"""Every function of the platform that writes leaves an entry in the audit log, by reading the source of all of them. A
new one cannot forget it without failing here; test_audit_walk.py calls those of people, catalog, nodes and runs."""

from tests.web.governance.call_graph import EXEMPT, FOUND, logged, writing


def test_every_function_that_writes_comes_to_the_log_or_says_why_not() -> None:
    found = writing(FOUND)
    assert {"cohort.accounts.services.membership_remove", "cohort.catalog.services.dataset_create"} <= set(found)
    silent = {name for name in found if not logged(FOUND, name)}
    assert sorted(silent - EXEMPT.keys()) == [], "call audit.log in these, or say in EXEMPT why not"
    assert sorted(EXEMPT.keys() - silent) == [], "these log by now, or are gone: take them out of EXEMPT"
