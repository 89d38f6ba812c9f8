"""The table of user actions, complete and by itself."""

from __future__ import annotations

from itertools import product

import pytest

from service.db.models import TERMINAL_STATES, Desired, JobState
from service.jobs.states import RULES, Action, ShownStatus, Target, shown_status, useful_actions

# state, desired -> what each action gives: "no" refused, "same" accepted without a change, else the new state/desired.
# Written out by hand so that a slip in the table's construction shows.
TABLE = """
queued    run     cancel=cancelled/cancel  pause=paused/pause   resume=same        retry=same
running   run     cancel=running/cancel    pause=running/pause  resume=same        retry=same
running   pause   cancel=running/cancel    pause=same           resume=running/run retry=no
running   cancel  cancel=same              pause=no             resume=no          retry=no
paused    pause   cancel=cancelled/cancel  pause=same           resume=queued/run  retry=no
succeeded run     cancel=no                pause=no             resume=no          retry=no
succeeded pause   cancel=no                pause=no             resume=no          retry=no
succeeded cancel  cancel=no                pause=no             resume=no          retry=no
failed    run     cancel=no                pause=no             resume=no          retry=queued/run
failed    pause   cancel=no                pause=no             resume=no          retry=queued/run
cancelled cancel  cancel=same              pause=no             resume=no          retry=queued/run
"""
ROWS = [line.split() for line in TABLE.strip().splitlines()]
CASES = [(row[0], row[1], *cell.split("=")) for row in ROWS for cell in row[2:]]


def outcome(state: JobState, desired: Desired, action: Action) -> str:
    target = RULES[state, desired].get(action)
    if target is None:
        return "no"
    return "same" if target == Target(state, desired) else f"{target.state}/{target.desired}"


@pytest.mark.parametrize(("state", "desired", "action", "expected"), CASES)
def test_action_gives_what_the_table_says(state: str, desired: str, action: str, expected: str) -> None:
    assert outcome(JobState(state), Desired(desired), Action(action)) == expected


def test_every_combination_has_a_rule() -> None:
    assert set(RULES) == set(product(JobState, Desired))


@pytest.mark.parametrize(("state", "desired"), list(product(JobState, Desired)))
def test_useful_actions_are_those_that_change_something(state: JobState, desired: Desired) -> None:
    useful = {a for a in Action if outcome(state, desired, a) not in ("no", "same")}
    assert set(useful_actions(state, desired)) == useful


@pytest.mark.parametrize("desired", list(Desired))
def test_users_never_end_a_job_that_somebody_runs(desired: Desired) -> None:
    targets = RULES[JobState.RUNNING, desired].values()
    assert {target.state for target in targets} == {JobState.RUNNING}


@pytest.mark.parametrize("desired", list(Desired))
def test_only_a_retry_leaves_a_terminal_state(desired: Desired) -> None:
    leaving = {
        (state, action)
        for state in TERMINAL_STATES
        for action, target in RULES[state, desired].items()
        if target.state is not state
    }
    assert leaving == {(JobState.FAILED, Action.RETRY), (JobState.CANCELLED, Action.RETRY)}


@pytest.mark.parametrize(
    ("state", "desired", "shown"),
    [
        (JobState.RUNNING, Desired.RUN, ShownStatus.RUNNING),
        (JobState.RUNNING, Desired.PAUSE, ShownStatus.PAUSING),
        (JobState.RUNNING, Desired.CANCEL, ShownStatus.CANCELLING),
        (JobState.SUCCEEDED, Desired.CANCEL, ShownStatus.SUCCEEDED),
        (JobState.QUEUED, Desired.RUN, ShownStatus.QUEUED),
    ],
)
def test_shown_status(state: JobState, desired: Desired, shown: ShownStatus) -> None:
    assert shown_status(state, desired) is shown
