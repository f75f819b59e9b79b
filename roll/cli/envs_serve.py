"""``roll envs serve``: an environment for the clients of OpenEnv."""

from __future__ import annotations

import sys

import uvicorn

from roll.certificates import Target
from roll.certificates.episodes import settled
from roll.cli.envs_text import found
from roll.common.http_server import HttpServer
from roll.config.errors import ConfigError, Problem
from roll.envs.serving import EnvServer


def serve(target: Target, host: str, port: int, sessions: int) -> None:
    """Serve an environment until Ctrl-C.

    Raises:
        ConfigError: There is none of that name, or the port is taken.
    """
    source = found(target)
    env = source.make()
    description = str(getattr(env, "instruction", "")) or (type(env).__doc__ or "").strip()
    settled(env.close())
    server = EnvServer(source.make, target.name, description, sessions)
    config = uvicorn.Config(server.app(), host=host, port=port, log_level="warning", access_log=False)
    running = HttpServer(config)
    try:
        listening = config.bind_socket()
    except SystemExit as error:  # what uvicorn does where a port is taken
        fix = "choose another one with --port, or 0 for any that is free."
        raise ConfigError([Problem("--port", f"port {port} of {host} cannot be listened to.", fix, port)]) from error
    at = listening.getsockname()[1]
    sys.stderr.write(f"{target.name} at http://{host}:{at} for {sessions} clients of OpenEnv (Ctrl-C ends it)\n")
    sys.stderr.flush()
    running.run(sockets=[listening])
