"""The process that claims a run or a job of the lab, trains or does it, and reports its end."""
