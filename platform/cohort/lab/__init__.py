"""The reward lab: rewards tried and probed before anything is trained with them. The code that a reward brings runs on
workers, never here."""
