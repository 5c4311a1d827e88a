"""`cohort demo`: one small run from nothing to a checked card, through the same services that the pages use.

`prepare` makes what the run needs, `progress` shows it, `report` prints the results, `main` calls them in order. No
shortcut that a person in the browser would not have: a figure printed here was read from the database.
"""
