"""What `cohort demo` draws in a terminal while its run trains."""

from cohort.demo.progress import line_of
from cohort.runs.models import Run


def test_a_line_tells_step_reward_and_time_left() -> None:
    """7 of 28 marks for 30 of 120 steps; 90 steps of 1.5 s are 2 min 15 s."""
    run = Run(
        state="training",
        phase="training",
        step=30,
        steps_total=120,
        latest_metrics={"reward": 0.41234},
        seconds_per_step=1.5,
    )
    bar = "#" * 7 + "." * 21
    assert line_of(run) == f"training          [{bar}] step 30 of 120  reward 0.412  2 min 15 s left"
