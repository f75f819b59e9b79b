"""Where the time of an episode went, drawn to scale."""

from __future__ import annotations

import pytest

from roll.trajectories.model import Turn
from roll.viewer.lanes import WIDTH, make_lane


def turn(seconds: dict[str, float], oldest: int = 0, newest: int = 0) -> Turn:
    return Turn([1], [2], [0.0], (oldest, newest), seconds=seconds)


def test_phases_follow_one_another_to_scale_in_the_order_in_which_they_happen() -> None:
    lane = make_lane([turn({"env": 1.0, "queue": 2.0, "generate": 3.0}), turn({"generate": 1.0, "reward": 3.0})])
    assert lane is not None and lane.seconds == 10.0 and lane.missing == ()
    assert [(span.kind, span.x, span.width) for span in lane.spans] == [
        *(("generate", 0, 300), ("queue", 300, 200), ("env", 500, 100)),
        *(("generate", 600, 100), ("reward", 700, 300)),
    ]
    assert lane.turns == ((0.0, 1), (600.0, 2))
    assert [(kind, seconds) for kind, _, seconds in lane.totals] == [
        *(("generate", 4.0), ("queue", 2.0), ("env", 1.0), ("reward", 3.0)),
    ]
    assert lane.spans[-1].x + lane.spans[-1].width == pytest.approx(WIDTH)


def test_new_weights_are_marked_where_they_came_and_no_nearer_than_is_known() -> None:
    times = {"generate": 1.0, "env": 1.0}
    lane = make_lane([turn(times, 3, 3), turn(times, 4, 4), turn(times, 4, 6), turn(times, 6, 6)])
    assert lane is not None
    assert [(update.x, update.width) for update in lane.updates] == [(250, 0), (500, 125)]
    assert "3 to 4 before turn 2" in lane.updates[0].hint and "4 to 6 while turn 3" in lane.updates[1].hint
    assert "was not recorded" in lane.updates[1].hint


def test_times_that_were_not_recorded_are_not_made_up() -> None:
    assert make_lane([]) is None and make_lane([turn({}), turn({"env": 0.0})]) is None
    lane = make_lane([turn({"generate": 1.0}), turn({}), turn({"odd": 1.0})])
    assert lane is not None and lane.missing == (2,) and [number for _, number in lane.turns] == [1, 3]
    assert lane.spans[1].kind == "other" and "turn 3, odd" in lane.spans[1].hint
