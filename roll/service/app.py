"""The protocol over HTTP: requests become futures, which clients come back for."""

from __future__ import annotations

import asyncio
import hmac
import io
import json
import tarfile
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from roll.service import protocol
from roll.service.clients import Client, Clients, new_name
from roll.service.links import SignedLinks
from roll.service.records import RefusedError

_POLL_SECONDS: Final = 20.0
"""How long a client waits for a result before it is told to ask again."""
_PROTOBUF: Final = "application/x-protobuf"

Result = dict[str, Any] | bytes
Handler = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


class Service:
    """Answers clients of the protocol; :attr:`app` is the web application.

    Args:
        clients: What they train and sample from.
        key: What they show.
    """

    def __init__(self, clients: Clients, key: str) -> None:
        self._clients = clients
        self._key = key
        self._links = SignedLinks(key)
        self._futures: dict[str, asyncio.Task[Result]] = {}
        self._asked: dict[tuple[str, int], str] = {}
        posts: dict[str, Handler] = {
            "client/config": self._config,
            "create_session": self._create_session,
            "session_heartbeat": _accepted,
            "telemetry": _accepted,
            "create_model": self._create_model,
            "get_info": self._get_info,
            "optim_step": self._optim_step,
            "save_weights": self._save_weights,
            "save_weights_for_sampler": self._save_for_sampler,
            "load_weights": self._load_weights,
            "unload_model": self._unload_model,
            "weights_info": self._weights_info,
            "create_sampling_session": self._create_sampling_session,
            "asample": self._sample,
        }
        routes = [
            Route(f"/api/v1/{name}", self._answering(handler), methods=["POST"]) for name, handler in posts.items()
        ]
        routes += [
            Route("/api/v1/forward_backward", self._guarded(self._forward_backward), methods=["POST"]),
            Route("/api/v1/retrieve_future", self._guarded(self._retrieve), methods=["POST"]),
            Route("/api/v1/healthz", _healthy, methods=["GET"]),
            Route("/api/v1/get_server_capabilities", self._guarded(self._capabilities), methods=["GET"]),
            Route("/api/v1/samplers/{name:path}", self._guarded(self._sampler), methods=["GET"]),
            Route("/api/v1/sessions/{session}/finish", self._guarded(self._finish), methods=["POST"]),
            Route("/api/v1/training_runs", self._guarded(self._runs), methods=["GET"]),
            Route(
                "/api/v1/training_runs/{model}/checkpoints/{rest:path}", self._guarded(self._delete), methods=["DELETE"]
            ),
            Route("/api/v1/training_runs/{model}/checkpoints", self._guarded(self._checkpoints), methods=["GET"]),
            Route(
                "/api/v1/training_runs/{model}/checkpoints/{kind}/{name}/archive",
                self._guarded(self._archive, by_link=True),
                methods=["GET"],
            ),
        ]
        self.app = Starlette(routes=routes)

    def _answering(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            body = json.loads(await request.body() or b"{}")
            if not isinstance(body, dict):
                raise RefusedError("the body of a request is a JSON object")
            return JSONResponse(await handler(body))

        return self._guarded(answer)

    def _guarded(
        self, answer: Callable[[Request], Awaitable[Response]], *, by_link: bool = False
    ) -> Callable[[Request], Awaitable[Response]]:
        """Answer whoever has the key, or ``by_link`` an address that was made with it."""

        async def guarded(request: Request) -> Response:
            has_key = hmac.compare_digest(request.headers.get("x-api-key", "").encode(), self._key.encode())
            given = request.query_params
            signed = by_link and self._links.allow(request.url, given.get("until", ""), given.get("signature", ""))
            if not has_key and not signed:
                return JSONResponse({"detail": "this key is none of this server: see what it printed"}, 401)
            try:
                return await answer(request)
            except RefusedError as error:
                return JSONResponse({"detail": str(error)}, error.status)
            except (KeyError, TypeError, ValueError) as error:
                return JSONResponse({"detail": f"the request cannot be read: {error!r}"}, 422)

        return guarded

    def _later(self, owner: str, sequence: int | None, work: Callable[[], Awaitable[Result]]) -> dict[str, Any]:
        """Begin some work, once however often a client sends it, and return what it comes back with."""
        if sequence is not None and (owner, sequence) in self._asked:
            return {"request_id": self._asked[owner, sequence]}
        name = new_name("request")
        if sequence is not None:
            self._asked[owner, sequence] = name

        async def done() -> Result:
            try:
                return await work()
            except RefusedError as error:
                return {"error": str(error), "category": "user"}
            except Exception as error:
                return {"error": f"{type(error).__name__}: {error}", "category": "server"}

        self._futures[name] = asyncio.ensure_future(done())
        return {"request_id": name}

    async def _retrieve(self, request: Request) -> Response:
        name = (await request.json())["request_id"]
        task = self._futures.get(name)
        if task is None:
            raise RefusedError(f"there is no request {name}", 410)
        done, _ = await asyncio.wait({task}, timeout=_POLL_SECONDS)
        if not done:
            return JSONResponse({"type": "try_again", "request_id": name, "queue_state": "active"})
        result = task.result()
        if isinstance(result, bytes):
            return Response(result, media_type=_PROTOBUF)
        return JSONResponse(result)

    async def _config(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {
            # One after the other: what is done to a model is done in the order in which it arrives.
            "parallel_fwdbwd_chunks": False,
            "use_pyqwest_transport": False,
            # Clients before 0.25 ask by JSON, and forward passes at another address, where nobody says this.
            "proto_write_fwdbwd": True,
            "fwd_via_fwdbwd": True,
        }

    async def _capabilities(self, request: Request) -> Response:
        base = self._clients.base
        model = {"model_name": base.name, "max_context_length": base.longest, "trainable": True, "sampleable": True}
        return JSONResponse({"supported_models": [model]})

    async def _create_session(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {"session_id": new_name("session")}

    async def _finish(self, request: Request) -> Response:
        await self._clients.finish(request.path_params["session"])
        return JSONResponse({})

    async def _create_model(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._check_base(body.get("base_model"))
        wanted = protocol.read_adapters(body)
        name = f"{body['session_id']}:train:{int(body['model_seq_id'])}"

        async def create() -> Result:
            await self._clients.create(name, wanted)
            return {"model_id": name, "type": "create_model"}

        return self._later(name, 0, create)

    async def _get_info(self, body: Mapping[str, Any]) -> dict[str, Any]:
        client, base = self._clients.client(body["model_id"]), self._clients.base
        return {
            "type": "get_info",
            "model_id": body["model_id"],
            "model_name": base.name,
            "is_lora": True,
            "lora_rank": client.model.wanted.rank,
            "model_data": {"model_name": base.name, "tokenizer_id": base.folder},
        }

    async def _forward_backward(self, request: Request) -> Response:
        wanted = await asyncio.to_thread(protocol.read_pass, await request.body())
        client = self._used(wanted.model_id)

        async def learn() -> Result:
            async with client.turn:
                learned = await self._clients.compute(
                    lambda: client.model.learn(wanted.examples, wanted.loss, wanted.config, backward=wanted.backward)
                )
            return protocol.write_learned(learned)

        return JSONResponse(self._later(wanted.model_id, wanted.sequence, learn))

    async def _optim_step(self, body: Mapping[str, Any]) -> dict[str, Any]:
        client, wanted = self._used(body["model_id"]), protocol.read_adam(body)

        async def step() -> Result:
            async with client.turn:
                return {"metrics": await self._clients.compute(lambda: client.model.step(wanted))}

        return self._later(body["model_id"], body.get("seq_id"), step)

    async def _save_weights(self, body: Mapping[str, Any]) -> dict[str, Any]:
        client = self._used(body["model_id"])

        async def save() -> Result:
            async with client.turn:
                path = await self._clients.save(body["model_id"], body.get("path"), "weights")
            return {"path": path, "type": "save_weights"}

        return self._later(body["model_id"], body.get("seq_id"), save)

    async def _save_for_sampler(self, body: Mapping[str, Any]) -> dict[str, Any]:
        model_id = body["model_id"]
        client = self._used(model_id)

        async def save() -> Result:
            async with client.turn:
                if body.get("path") is None and body.get("sampling_session_seq_id") is not None:
                    sampler = f"{model_id}:sample:{body['sampling_session_seq_id']}"
                    await self._clients.open_snapshot(model_id, sampler)
                    return {"sampling_session_id": sampler, "type": "save_weights_for_sampler"}
                path = await self._clients.save(model_id, body.get("path"), "sampler_weights")
            return {"path": path, "type": "save_weights_for_sampler"}

        return self._later(model_id, body.get("seq_id"), save)

    async def _load_weights(self, body: Mapping[str, Any]) -> dict[str, Any]:
        name = body.get("model_id") or f"{body['session_id']}:train:{int(body['model_seq_id'])}"
        path, optimizer = body["path"], bool(body.get("optimizer", False))

        async def load() -> Result:
            if body.get("model_id"):
                async with self._clients.client(name).turn:
                    await self._clients.load(name, path, optimizer=optimizer)
            else:
                await self._clients.load(name, path, optimizer=optimizer)
            return {"path": path, "model_id": name, "type": "load_weights"}

        return self._later(name, body.get("seq_id", 0), load)

    async def _weights_info(self, body: Mapping[str, Any]) -> dict[str, Any]:
        kind = self._clients.kind(body["tinker_path"])
        return {
            "base_model": self._clients.base.name,
            "is_lora": True,
            "lora_rank": kind.rank,
            "train_unembed": False,
            "train_mlp": kind.train_mlp,
            "train_attn": kind.train_attn,
        }

    async def _create_sampling_session(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if body.get("model_path") is None:
            self._check_base(body.get("base_model"))
        name = f"{body['session_id']}:sample:{int(body['sampling_session_seq_id'])}"
        await self._clients.open_sampler(name, body.get("model_path"))
        return {"sampling_session_id": name, "type": "create_sampling_session"}

    async def _sampler(self, request: Request) -> Response:
        name = request.path_params["name"]
        _, path = self._clients.sampler(name)
        return JSONResponse({"sampler_id": name, "base_model": self._clients.base.name, "model_path": path})

    async def _sample(self, body: Mapping[str, Any]) -> dict[str, Any]:
        base = self._clients.base
        name = body.get("sampling_session_id")
        if name is None:
            name = new_name("sampler")
            if body.get("model_path") is None:
                self._check_base(body.get("base_model"))
            sampler = await self._clients.sampler_at(body.get("model_path"))
        else:
            sampler, _ = self._clients.sampler(name)
        count, scored = int(body.get("num_samples", 1)), bool(body.get("prompt_logprobs"))

        async def sample() -> Result:
            prompt = protocol.read_prompt(body)
            sampling, seed = protocol.read_sampling(body, base.stop_token_ids, base.longest)
            return protocol.write_sampled(await sampler.sample(prompt, count, sampling, seed, prompt_logprobs=scored))

        answer = self._later(name, body.get("seq_id"), sample)
        return {**answer, "sample_sequence_ids": [f"{answer['request_id']}-{number}" for number in range(count)]}

    async def _checkpoints(self, request: Request) -> Response:
        found = []
        for path, folder in self._clients.stored(request.path_params["model"]):
            kind, name = path.split("/")[-2:]
            files = list(folder.iterdir())
            found.append(
                {
                    "checkpoint_id": name,
                    "checkpoint_type": "training" if kind == "weights" else "sampler",
                    "time": datetime.fromtimestamp(folder.stat().st_mtime, UTC).isoformat(),
                    "tinker_path": path,
                    "size_bytes": sum(file.stat().st_size for file in files),
                }
            )
        return JSONResponse({"checkpoints": found})

    async def _runs(self, request: Request) -> Response:
        runs = [
            {
                "training_run_id": name,
                "base_model": self._clients.base.name,
                "model_owner": "roll",
                "is_lora": True,
                "lora_rank": client.model.wanted.rank,
                "last_request_time": datetime.fromtimestamp(client.began, UTC).isoformat(),
            }
            for name, client in self._clients.models().items()
        ]
        first = int(request.query_params.get("offset", 0))
        shown = runs[first : first + int(request.query_params.get("limit", 20))]
        cursor = {"offset": first, "limit": len(shown), "total_count": len(runs)}
        return JSONResponse({"training_runs": shown, "cursor": cursor})

    async def _delete(self, request: Request) -> Response:
        # Weights for training and for sampling may have the same name: which are meant must be said.
        self._clients.delete(f"tinker://{request.path_params['model']}/{request.path_params['rest']}")
        return Response(status_code=204)

    async def _unload_model(self, body: Mapping[str, Any]) -> dict[str, Any]:
        name = body["model_id"]
        client = self._clients.client(name)

        async def unload() -> Result:
            async with client.turn:
                self._clients.unload(name)
            return {"model_id": name, "type": "unload_model"}

        return self._later(name, body.get("seq_id"), unload)

    async def _archive(self, request: Request) -> Response:
        parts = request.path_params
        folder = self._clients.archive(f"tinker://{parts['model']}/{parts['kind']}/{parts['name']}")
        if "application/json" in request.headers.get("accept", ""):
            address, until = self._links.to(request.url)
            return JSONResponse({"url": address, "expires": until.isoformat()})

        def packed() -> bytes:
            content = io.BytesIO()
            with tarfile.open(fileobj=content, mode="w:gz") as archive:
                for path in sorted(folder.iterdir()):
                    archive.add(path, path.name)
            return content.getvalue()

        return Response(await asyncio.to_thread(packed), media_type="application/gzip")

    def _used(self, model_id: str) -> Client:
        """Return a model, of which something is asked now."""
        client = self._clients.client(model_id)
        client.is_used = True
        return client

    def _check_base(self, name: str | None) -> None:
        if name != self._clients.base.name:
            raise RefusedError(f"there is no base model {name!r}: this server has {self._clients.base.name!r}", 404)


async def _accepted(body: Mapping[str, Any]) -> dict[str, Any]:
    return {"status": "accepted", "type": "session_heartbeat"}


async def _healthy(request: Request) -> Response:
    return JSONResponse({"status": "ok"})
