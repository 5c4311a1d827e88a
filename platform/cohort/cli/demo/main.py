"""The demo from start to end: start everything, prepare, launch, show, check, print where things are."""

from contextlib import suppress

from cohort import __version__
from cohort.cli.demo.tasks import DemoTask
from cohort.cli.embedded.home import Home
from cohort.cli.embedded.up import STOP_HINT, Up, running, say, serve_until_stopped


def demo(home: Home, task: DemoTask, *, port: int, steps: int | None, stay: bool) -> int:
    """0 when the run succeeded and its card was accepted; a fault raises GrpoError after everything was stopped."""
    say(f"Cohort {__version__}, home {home.path}")
    with running(home, host="127.0.0.1", port=port, purpose="cohort demo") as up:
        _train_and_check(up, task, steps=steps)
        if stay:
            say(f"\nServing on. {STOP_HINT}")
            with suppress(KeyboardInterrupt):
                serve_until_stopped(up)
    return 0


def _train_and_check(up: Up, task: DemoTask, *, steps: int | None) -> None:
    from django.urls import reverse

    from cohort.cli.demo import prepare, report

    user, project, password = prepare.person()
    login = f"log in as {user.username} with the password {password} (each demo makes a new one)"
    say(f"{up.address}  {login}")
    prepare.build_model(up, task)
    say(report.probed(prepare.probe(up, project, user, task)))
    run = prepare.launch(up, project, user, task, steps=steps)
    page = f"{up.address}{reverse('run_detail', args=[project.slug, run.pk])}"
    say(f"run {run.pk} launched: {page}")
    run = report.follow(run, watch=up.watch)
    report.ended_well(run)
    card = report.save_card(run, up.home)
    verdicts = report.verify(card)
    say("\n".join(["", *report.accuracy(run), *report.suite_changes(run), f"card             {card}"]))
    say(
        "                 for internal use: with every event and all kept prompts and completions, not to be handed on;"
    )
    say("                 the public one is on the record's page")
    for name, verdict in verdicts.items():
        say(f"{name:<16} {verdict}")
    say(f"page             {page}\n                 {login}")
