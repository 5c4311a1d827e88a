"""What may be wrong with a run, each declared once: watched after each step and recorded at the end. Loads no torch."""
