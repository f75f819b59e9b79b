"""What a recorder has recorded, as the turns of a trajectory."""

from __future__ import annotations

from roll.gateway.recorder import Recorder
from roll.gateway.tree import Call
from roll.trajectories.model import Turn


def turns_of(recorder: Recorder) -> list[Turn]:
    """Return a turn for every recorded answer.

    Calls that go on from one another follow one another, and every branch begins a training sample, with its whole
    prompt. The last call is the last turn.
    """
    turns: list[Turn] = []
    for branch in recorder.tree.branches():
        turns += [_turn(call, begins=not index, first=not turns) for index, call in enumerate(branch)]
    return turns


def recorded_metrics(recorder: Recorder) -> dict[str, float]:
    """Return what can be counted of the calls of an episode.

    Returns:
        ``calls``; ``branches``, the training samples; ``calls_refused``; ``tokens_kept``, the share of the tokens of
        earlier calls in prompts that are as they were sampled (1 where there were none).
    """
    return {
        "calls": float(len(recorder.tree.calls)),
        "branches": float(sum(1 for _ in recorder.tree.branches())),
        "calls_refused": float(recorder.refused.total()),
        "tokens_kept": recorder.kept_tokens / recorder.history_tokens if recorder.history_tokens else 1.0,
    }


def _turn(call: Call, *, begins: bool, first: bool) -> Turn:
    anew = begins and not first
    heard = call.history if anew else call.said
    roles = [message["role"] for message in call.history]
    after = len(roles) - roles[::-1].index("assistant") if "assistant" in roles else 0
    observation = "\n".join(message["content"] for message in call.history[after:] if message["role"] != "system")
    is_plain = not anew and [message["role"] for message in heard] == ["user"]
    return Turn(
        prompt_ids=call.prompt_ids if begins else list(call.added_ids),
        completion_ids=list(call.completion.token_ids),
        logprobs=list(call.completion.logprobs),
        policy_version=call.completion.policy_version,
        observation=observation,
        response=call.response,
        action=call.action,
        seconds=dict(call.seconds),
        starts_sample=anew,
        messages=[] if first or is_plain else [dict(message) for message in heard],
        begins_anew=anew,
    )
