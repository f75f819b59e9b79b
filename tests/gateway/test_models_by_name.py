"""Several models behind one key, as OpenAI's client finds them."""

from __future__ import annotations

import openai
import pytest
from recorded_calls import BookEngine, recorder
from serving import renderer, replies, serving

from roll.gateway import Gateway, GatewayServer, OnLoop


def test_a_call_goes_to_the_model_that_it_names() -> None:
    with serving("the base") as served:
        spoken = renderer()
        others = {
            name: OnLoop(recorder(BookEngine(replies(spoken, f"the {name}")), spoken), served.loop)
            for name in ("poet", "sums")
        }
        base = OnLoop(recorder(served.engine, served.renderer), served.loop)
        gateway = Gateway("base", only_model=True)
        server, key = GatewayServer(gateway), gateway.open(base, others=others)
        try:
            with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
                assert [model.id for model in client.models.list()] == ["base", "poet", "sums"]
                assert client.models.retrieve("poet").id == "poet"
                for name in ("base", "poet", "sums"):
                    said = [{"role": "user", "content": "Who are you?"}]
                    answer = client.chat.completions.create(model=name, messages=said)  # type: ignore[arg-type]
                    assert (answer.model, answer.choices[0].message.content) == (name, f"the {name}")
                with pytest.raises(openai.NotFoundError, match="this server has 'base', 'poet', 'sums'"):
                    client.chat.completions.create(model="gpt", messages=said)  # type: ignore[arg-type]
        finally:
            server.close()
