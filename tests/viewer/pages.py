"""Trajectories to make pages of."""

from __future__ import annotations

from roll.trajectories.model import Status, Trajectory, Turn

HOSTILE = "</script></pre><script>document.title='taken over'</script><img src=x onerror=document.title='taken'>"
PIXEL = "data:image/png;base64," + (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
BOARDS = ("####\n#PX#\n#_O#\n####", "####\n#P_#\n#X√#\n####", "####\n#__#\n#P√#\n####")


def make_trajectory(group: int = 0, *, success: bool = True, **changes: object) -> Trajectory:
    """Return an episode of two turns, the second of which has a hostile response without an action."""
    turns = [
        Turn(
            [1] * 9,
            list(b"<answer>Up</answer>"),
            [-0.1] * 18 + [-3.0],
            (4, 5),
            f"observed\n{BOARDS[0]}",
            "<answer>Up</answer>",
            "Up",
            -0.1,
            {"env": -0.1},
            frame=BOARDS[0],
            seconds={"generate": 0.25},
        ),
        Turn(
            [1] * 5,
            list(HOSTILE.encode()),
            [-0.5] * len(HOSTILE),
            (5, 5),
            "observed again",
            HOSTILE,
            None,
            10.85,
            {"env": 10.9, "format": -0.05},
            frame=BOARDS[1],
        ),
    ]
    trajectory = Trajectory(
        "SimpleSokoban",
        f"val-{group}",
        0,
        1000 + group,
        turns=turns,
        status=Status.COMPLETED if success else Status.TRUNCATED_TURNS,
        score=10.75 if success else -1.0,
        final_observation=BOARDS[2],
        final_frame=BOARDS[2],
        metrics={"success": float(success)},
        messages=[{"role": "system", "content": "You push <boxes>."}, {"role": "user", "content": "Go & solve it."}],
    )
    for name, value in changes.items():
        setattr(trajectory, name, value)
    return trajectory


def answer(group: int, episode: int, *, right: bool) -> Trajectory:
    """Return a graded response to a prompt; a wrong one still earned something for its format."""
    turn = make_trajectory().turns[0]
    turn.action, turn.reward, turn.reward_parts = "", 1.1 if right else 0.1, {"math": float(right), "format": 0.1}
    return make_trajectory(
        group,
        episode=episode,
        tag="arithmetic",
        turns=[turn],
        score=turn.reward,
        metrics={"success": float(right)},
        final_observation="right answer: 42",
        final_frame=None,
        messages=[{"role": "user", "content": f"What is 6 times\n{group}?"}],
    )
