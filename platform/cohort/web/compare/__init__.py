"""Pages that compare runs of a project: settings, curves, evaluations, answers to the same problem."""
