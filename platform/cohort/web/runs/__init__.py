"""Pages of runs, one file per thing a person does: fetch, authorise, call one service, render."""
