"""Steps of a run done again, compared with what was recorded of them: which steps, within which bounds, with what
result. The steps themselves are re-executed by trainer/replay.py; nothing here loads torch."""
