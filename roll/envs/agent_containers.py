"""Commands of agents in containers of Docker or Podman."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from roll.common.spelling import did_you_mean
from roll.envs.agent_places import Launch
from roll.envs.errors import EnvConfigError
from roll.sandbox import Container, ContainerLimits, SandboxError, find_container_program
from roll.sandbox.containers import OWN_NETWORK

_GATEWAY: Final = "gateway"
_LIMITS: Final = frozenset(limit.name for limit in fields(ContainerLimits))
_OPTIONS: Final = ("image", "network", "options", "program", "read")


class InContainer:
    """A container for each command: it sees an image, its folders and what is mounted, and reaches the policy.

    Args:
        options: The name of an image, or a mapping: ``image``; ``program`` (``docker`` or ``podman``, without it the
            first of them that works); ``network`` (``gateway``: nothing but the policy; ``host``; or a name
            that the program knows); ``read``, files and folders that are mounted read-only, under the names that they
            have outside; ``options``, further words for the program's ``run``; and limits of
            :class:`roll.sandbox.ContainerLimits`.

    Raises:
        EnvConfigError: There is no such option, image or file, or nothing here runs containers.
    """

    def __init__(self, options: str | Mapping[str, Any]) -> None:
        given = {"image": options} if isinstance(options, str) else dict(options)
        if unknown := sorted(given.keys() - _LIMITS - set(_OPTIONS)):
            advice = did_you_mean(unknown[0], {*_OPTIONS, *_LIMITS})
            raise EnvConfigError(f"container has no option {unknown[0]!r}. {advice}")
        self._image = _word("image", given.pop("image", None))
        self._network = _word("network", given.pop("network", _GATEWAY))
        self._readable = [Path(path).resolve() for path in _words("read", given.pop("read", ()))]
        self._options = _words("options", given.pop("options", ()))
        if missing := [str(path) for path in self._readable if not path.exists()]:
            raise EnvConfigError(f"container.read: there is no {', '.join(missing)}")
        if unmountable := [str(path) for path in self._readable if "," in str(path)]:
            raise EnvConfigError(f"container.read: a name with a comma cannot be mounted: {unmountable[0]}")
        program = given.pop("program", None)
        try:
            self._limits = ContainerLimits(**given)
            self._program = find_container_program(program)
            self._program.require_image(self._image)
        except (ValueError, SandboxError) as error:
            raise EnvConfigError(f"container: {error}") from error

    def program_of(self, word: str) -> str:
        """See :class:`roll.envs.agent_places.Place`; only the image knows it."""
        return word

    @contextmanager
    def running(self, launch: Launch, client: Any) -> Iterator[subprocess.Popen[bytes]]:
        """See :class:`roll.envs.agent_places.Place`."""
        shut = self._network == _GATEWAY
        container = Container(
            program=self._program,
            image=self._image,
            folder=launch.folders[0],
            writable=launch.folders[1:],
            readable=self._readable,
            network=OWN_NETWORK if shut else self._network,
            port=0 if client is None else client.port,
            limits=self._limits,
            options=self._options,
        )
        # A user whom the image does not know has no home there.
        home = {} if self._program.user.startswith("0:") else {"HOME": "/tmp"}
        with container.running(launch.words, {**home, **launch.variables}, *launch.outputs) as (process, listener):
            if listener is None:
                yield process
            else:
                with client.answering_at(listener):
                    yield process


def _word(option: str, value: object) -> str:
    if not isinstance(value, str) or not value or value.startswith("-"):
        raise EnvConfigError(f"container.{option}: a name is wanted, got {value!r}")
    return value


def _words(option: str, value: object) -> list[str]:
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, Sequence) or not all(isinstance(word, str) for word in words):
        raise EnvConfigError(f"container.{option}: a list of words is wanted, got {value!r}")
    return list(words)
