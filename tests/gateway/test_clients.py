"""The official clients of OpenAI and Anthropic against the gateway, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from recorded_calls import trained, trajectory_of
from serving import Served, serving

from roll.gateway import recorded_metrics
from roll.generation import SamplingError

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "What the weather is.", "parameters": PARAMETERS}
TEMPLATES = [None, "qwen3"]


@pytest.fixture
def speaking() -> Iterator[Served]:
    with serving("Good morning to you.", "And to you.") as served:
        yield served


def chat(served: Served, key: str | None = None) -> Any:
    key = key or served.episode()
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key=key, max_retries=0, timeout=30)


def messages(served: Served, key: str | None = None) -> Any:
    return anthropic.Anthropic(base_url=served.url, api_key=key or served.episode(), max_retries=0, timeout=30)


def check_recorded_as_one(served: Served, calls: int) -> None:
    (episode,) = served.recorders.values()
    assert recorded_metrics(episode) == {"calls": calls, "branches": 1, "calls_refused": 0, "tokens_kept": 1}
    assert trained(trajectory_of(episode)) == served.engine.book


def test_a_conversation_of_openais_client_is_one_sample(speaking: Served) -> None:
    client = chat(speaking)
    said: list[Any] = [{"role": "developer", "content": "Be polite."}, {"role": "user", "content": "Good morning"}]
    first = client.chat.completions.create(model="gpt-5", messages=said)
    choice = first.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Good morning to you.", "stop")
    ((prompt, sampled),) = speaking.engine.book
    assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (len(prompt), len(sampled))
    second = client.chat.completions.create(
        model="gpt-5", messages=[*said, choice.message, {"role": "user", "content": [{"type": "text", "text": "Hm"}]}]
    )
    assert second.choices[0].message.content == "And to you."
    assert second.usage.prompt_tokens > first.usage.total_tokens
    check_recorded_as_one(speaking, 2)


def test_a_stream_says_the_same_as_an_answer(speaking: Served) -> None:
    said: Any = [{"role": "user", "content": "Good morning"}]
    whole = chat(speaking).chat.completions.create(model="m", messages=said, n=2, logprobs=True)
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(chat(speaking).chat.completions.create(model="m", messages=said, n=2, logprobs=True, **options))
    for choice in whole.choices:
        deltas = [each for chunk in chunks for each in chunk.choices if each.index == choice.index]
        assert "".join(each.delta.content or "" for each in deltas) == choice.message.content
        assert [each.finish_reason for each in deltas if each.finish_reason] == [choice.finish_reason]
        (told,) = [each.logprobs.model_dump() for each in deltas if each.logprobs]
        assert told == choice.logprobs.model_dump()
    assert chunks[-1].usage == whole.usage and all(chunk.usage is None for chunk in chunks[:-1])


def test_logprobs_are_those_of_the_sampled_tokens(speaking: Served) -> None:
    said: Any = [{"role": "user", "content": "Good morning"}]
    extra: Any = {"extra_body": {"return_token_ids": True}}
    answer = chat(speaking).chat.completions.create(model="m", messages=said, logprobs=True, **extra)
    choice = answer.choices[0]
    ((prompt, sampled),) = speaking.engine.book
    assert (tuple(answer.prompt_token_ids), tuple(choice.token_ids)) == (prompt, sampled)
    content = choice.logprobs.content
    assert "".join(token.token for token in content) == choice.message.content
    assert [token.logprob for token in content] == [-float(token % 7) for token in sampled[:-1]]


def test_a_text_that_ends_an_answer_is_cut_off_and_stays_in_the_record() -> None:
    with serving("Thought: run\nObservation: made up", "Done.") as served:
        client = chat(served)
        said: list[Any] = [{"role": "user", "content": "Act"}]
        answer = client.chat.completions.create(model="m", messages=said, stop=["Observation:"]).choices[0]
        assert (answer.message.content, answer.finish_reason) == ("Thought: run\n", "stop")
        assert served.engine.requests[0].sampling.stop_strings == ("Observation:",)
        client.chat.completions.create(model="m", messages=[*said, answer.message, {"role": "user", "content": "Go"}])
        check_recorded_as_one(served, 2)


@pytest.mark.parametrize("template", TEMPLATES)
def test_tools_of_chat_completions(template: str | None) -> None:
    with serving(f"Let me see.\n{CALL}", "It rains.", template=template) as served:
        client, said = chat(served), [{"role": "user", "content": "Weather in Paris?"}]
        tools: Any = [{"type": "function", "function": WEATHER}]
        first = client.chat.completions.create(model="m", messages=said, tools=tools).choices[0]
        (call,) = first.message.tool_calls
        assert (first.finish_reason, first.message.content) == ("tool_calls", "Let me see.")
        assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Paris"}')
        result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
        said += [first.message.model_dump(exclude_none=True), result]
        stream = list(client.chat.completions.create(model="m", messages=said, tools=tools, stream=True))
        assert "".join(each.choices[0].delta.content or "" for each in stream) == "It rains."
        prompt = served.renderer.encoder.decode(served.engine.requests[1].prompt_ids)
        assert "What the weather is." in prompt and CALL in prompt and "rain" in prompt.partition(CALL)[2]
        check_recorded_as_one(served, 2)


@pytest.mark.parametrize("template", TEMPLATES)
def test_tools_of_responses(template: str | None) -> None:
    with serving(f"Let me see.\n{CALL}", "It rains.", template=template) as served:
        client = chat(served)
        tools: Any = [{"type": "function", **WEATHER}]
        said: list[Any] = [{"role": "user", "content": "Weather in Paris?"}]
        first = client.responses.create(model="m", input=said, instructions="Be brief.", tools=tools)
        spoken, call = first.output
        assert first.status == "completed" and first.output_text == spoken.content[0].text == "Let me see."
        assert (call.name, call.arguments) == ("weather", '{"city": "Paris"}')
        said += [*first.output, {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
        with client.responses.stream(model="m", input=said, instructions="Be brief.", tools=tools) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        assert final.output_text == "It rains." and final.usage.total_tokens > first.usage.total_tokens
        assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
        check_recorded_as_one(served, 2)


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("named", [False, True])
def test_an_answer_that_must_call_is_begun_for_the_policy_and_only_its_rest_is_trained(
    template: str | None, named: bool
) -> None:
    begun = '<tool_call>\n{"name": "' + ('weather", "arguments": ' if named else "")
    rest = CALL.removeprefix(begun)
    with serving(rest, "It rains.", template=template) as served:
        client, said = chat(served), [{"role": "user", "content": "Weather in Paris?"}]
        tools: Any = [{"type": "function", "function": WEATHER}]
        choice: Any = {"type": "function", "function": {"name": "weather"}} if named else "required"
        first = client.chat.completions.create(model="m", messages=said, tools=tools, tool_choice=choice).choices[0]
        (call,) = first.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Paris"}')
        ((prompt, sampled),) = served.engine.book
        text = served.renderer.encoder.decode
        assert text(prompt).endswith(begun) and text(sampled[:-1]) == rest
        result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
        client.chat.completions.create(model="m", messages=[*said, first.message, result], tools=tools)
        check_recorded_as_one(served, 2)
        with pytest.raises(openai.BadRequestError, match="no function 'other'"):
            other: Any = {"type": "function", "function": {"name": "other"}}
            client.chat.completions.create(model="m", messages=said, tools=tools, tool_choice=other)


def test_a_call_in_a_stream_of_responses() -> None:
    with serving(CALL) as served:
        tools: Any = [{"type": "function", **WEATHER, "strict": False}]
        with chat(served).responses.stream(model="m", input="Weather in Paris?", tools=tools) as stream:
            (call,) = stream.until_done().get_final_response().output
        assert (call.type, call.name, call.arguments) == ("function_call", "weather", '{"city": "Paris"}')


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("streamed", [False, True])
def test_tools_of_anthropics_client(template: str | None, streamed: bool) -> None:
    with serving(f"Let me see.\n{CALL}", "It rains.", template=template) as served:
        client = messages(served)
        fixed: Any = {
            "model": "claude",
            "max_tokens": 50,
            "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            "tools": [{"name": "weather", "description": "What the weather is.", "input_schema": PARAMETERS}],
        }

        def answer(said: list[Any]) -> Any:
            if not streamed:
                return client.messages.create(messages=said, **fixed)
            with client.messages.stream(messages=said, **fixed) as stream:
                return stream.get_final_message()

        said: list[Any] = [{"role": "user", "content": "Weather in Paris?"}]
        first = answer(said)
        text, call = first.content
        assert (text.text, call.name, call.input) == ("Let me see.", "weather", {"city": "Paris"})
        assert first.stop_reason == "tool_use" and first.usage.output_tokens > 0
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
        said += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        second = answer(said)
        assert second.content[0].text == "It rains." and second.stop_reason == "end_turn"
        check_recorded_as_one(served, 2)


def test_stop_sequences_and_limits_of_anthropics_client() -> None:
    with serving("One. Two. Three.") as served:
        said: Any = [{"role": "user", "content": "Count"}]
        answer = messages(served).messages.create(model="m", max_tokens=9, messages=said, stop_sequences=["Two"])
        assert (answer.content[0].text, answer.stop_reason, answer.stop_sequence) == ("One. ", "stop_sequence", "Two")
        assert served.engine.requests[0].sampling.max_new_tokens == 9


def test_refusals_arrive_as_the_errors_of_the_clients(speaking: Served) -> None:
    said: Any = [{"role": "user", "content": "Hi"}]
    with pytest.raises(openai.AuthenticationError, match="Incorrect API key"):
        chat(speaking, "wrong").chat.completions.create(model="m", messages=said)
    with pytest.raises(anthropic.AuthenticationError, match="Incorrect API key"):
        messages(speaking, "wrong").messages.create(model="m", max_tokens=5, messages=said)
    with pytest.raises(openai.BadRequestError) as refused:
        chat(speaking).chat.completions.create(model="m", messages=said, logit_bias={"5": 1})
    assert refused.value.code == "unsupported_parameter" and refused.value.param == "logit_bias"
    with pytest.raises(anthropic.BadRequestError, match="container"):
        messages(speaking).messages.create(model="m", max_tokens=5, messages=said, extra_body={"container": "c"})
    with pytest.raises(openai.NotFoundError, match="this server answers"):
        chat(speaking).embeddings.create(model="m", input="Hi")


def test_a_conversation_that_is_too_long_is_refused_as_openai_does() -> None:
    with serving("ok", sequence_length=40) as served, pytest.raises(openai.BadRequestError) as refused:
        chat(served).chat.completions.create(model="m", messages=[{"role": "user", "content": "word " * 200}])
    assert refused.value.code == "context_length_exceeded"


def test_models_are_listed(speaking: Served) -> None:
    client = chat(speaking)
    assert [model.id for model in client.models.list()] == ["toy"]
    assert client.models.retrieve("toy").owned_by == "roll"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_form_is_asked_of_the_engine_and_an_engine_that_has_none_refuses_the_call(speaking: Served) -> None:
    key = speaking.episode()
    client = chat(speaking, key)
    said: Any = [{"role": "user", "content": "Good morning"}]
    asked: Any = {"model": "m", "messages": said, "response_format": {"type": "json_object"}}
    client.chat.completions.create(**asked)
    client.chat.completions.create(model="m", messages=said, response_format={"type": "text"})
    held, free = (request.sampling.grammar for request in speaking.engine.requests)
    assert held.startswith("start: answer") and free == ""

    def refuse(request: Any) -> list[int]:
        raise SamplingError("this engine knows no text")

    speaking.engine._next_ids = refuse
    with pytest.raises(openai.BadRequestError, match="this engine knows no text"):
        client.chat.completions.create(**asked)
    assert speaking.recorders[key].error is None, "the episode goes on"


def test_one_call_at_a_time_is_the_first_that_an_answer_makes() -> None:
    with serving(f"{CALL}\n{CALL}") as served:
        said: Any = [{"role": "user", "content": "The weather?"}]
        tools: Any = [{"type": "function", "function": WEATHER}]
        for parallel, calls in ((True, 2), (False, 1)):
            answer = chat(served).chat.completions.create(
                model="m", messages=said, tools=tools, parallel_tool_calls=parallel
            )
            assert len(answer.choices[0].message.tool_calls) == calls
        one: Any = {"type": "auto", "disable_parallel_tool_use": True}
        told: Any = [{"name": "weather", "input_schema": PARAMETERS}]
        message = messages(served).messages.create(model="m", max_tokens=9, messages=said, tools=told, tool_choice=one)
        assert [block.type for block in message.content] == ["tool_use"]


def test_what_claude_code_sends_is_understood(speaking: Served) -> None:
    answer = messages(speaking).beta.messages.create(
        model="m",
        max_tokens=90,
        system=[{"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]},
            {"role": "system", "content": "There are more agents."},
        ],
        thinking={"type": "enabled", "budget_tokens": 1024},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        output_config={"effort": "high"},
        metadata={"user_id": "me"},
        betas=["context-management-2025-06-27"],
    )
    assert answer.content[0].text == "Good morning to you."
    (request,) = speaking.engine.requests
    assert "There are more agents." in speaking.renderer.decode(request.prompt_ids) and not request.sampling.grammar


def test_what_codex_sends_is_understood_and_tools_of_other_kinds_are_not_told(speaking: Served) -> None:
    function: Any = {"type": "function", "name": "exec_command", "parameters": PARAMETERS, "strict": False}
    others: Any = [
        {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [function | {"name": "spawn"}]},
        {"type": "web_search", "external_web_access": False},
    ]
    answer = chat(speaking).responses.create(
        model="m",
        input=[{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]}],
        tools=[function, *others],
        parallel_tool_calls=False,
        reasoning={"summary": "auto"},
        include=["reasoning.encrypted_content"],
        store=False,
        text={"verbosity": "low"},
        extra_body={"client_metadata": {"thread": "1"}},
    )
    assert answer.output_text == "Good morning to you." and [tool.name for tool in answer.tools] == ["exec_command"]
    prompt = speaking.renderer.decode(speaking.engine.requests[0].prompt_ids)
    assert "exec_command" in prompt and "spawn" not in prompt and "web_search" not in prompt
    with pytest.raises(openai.BadRequestError, match=r"tools\.0"):
        chat(speaking).responses.create(model="m", input="Hi", tools=[function | {"type": "fuction"}])
