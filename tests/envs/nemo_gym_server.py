"""Serves resource servers of NeMo Gym as they are, without the processes that `ng_run` starts around them.

python nemo_gym_server.py NAME=PORT…    NAME is a folder of `resources_servers`
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import Any

import uvicorn
from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.server_utils import ServerClient
from omegaconf import OmegaConf


def server_of(name: str, port: int) -> Any:
    """Return the resource server of a folder, set up as its configuration file would."""
    module = importlib.import_module(f"resources_servers.{name}.app")
    kind = next(
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, SimpleResourcesServer) and each.__module__ == module.__name__
    )
    settings = kind.model_fields["config"].annotation
    config = settings(host="127.0.0.1", port=port, entrypoint="app.py", name=name)
    head = BaseServerConfig(host="127.0.0.1", port=port)
    client = ServerClient(head_server_config=head, global_config_dict=OmegaConf.create({}))
    return kind(config=config, server_client=client)


async def serve(servers: list[str]) -> None:
    """Serve them all, in this process, until it is ended."""
    apps = []
    for name, _, port in (each.partition("=") for each in servers):
        server = server_of(name, int(port))
        app = server.setup_webserver()
        server.setup_liveness(app)
        server.setup_exception_middleware(app)
        apps.append(uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=int(port), log_level="error")))
    await asyncio.gather(*(app.serve() for app in apps))


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1:]))
