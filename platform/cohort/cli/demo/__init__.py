"""`cohort demo`: one small run from nothing to a checked card, through the same services that the pages use.

`prepare` makes what the run needs, `progress` shows it, `report` says what came of it, `main` is the order. No
shortcut that a person in the browser would not have: a figure printed here was read from the database.
"""
