"""``roll doctor``: what this machine has, and what is missing for which part of the library."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from packaging.requirements import Requirement

from roll.cli.arguments import AsJson
from roll.cli.examples import examples
from roll.cli.exits import ExitCode

app = typer.Typer()

_DISTRIBUTION = "roll-rl"
_LEAST_FREE_GB = 1.0
_OF_NO_RUN = ("dev", "docs", "bench")
"""Extras of those who develop roll; whoever runs it may have other versions of what is in them."""


@app.command(epilog=examples("roll doctor", "roll doctor --json"))
def doctor(as_json: AsJson = False) -> None:
    """Look at packages, devices, Ray, disk, sandbox and containers, and say what is missing for what.

    Code 0: a toy policy can be trained here. Code 3: it cannot; the last lines say why. Starts and writes nothing.
    \f

    Raises:
        Exit: Something is missing.
    """
    packages = _packages()
    found: dict[str, Any] = {
        "roll": version_of(_DISTRIBUTION),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages,
        "other_versions": _other_versions(),
        "devices": _devices(),
        "disk": _disk(),
        "strategies": _strategies(),
        "ray": _ray(),
        "sandbox": _sandbox(),
        "containers": _containers(),
    }
    found["problems"] = _problems(found)
    typer.echo(json.dumps(found, indent=2, default=str) if as_json else "\n".join(_lines(found)))
    if found["problems"]:
        raise typer.Exit(ExitCode.UNABLE)


def version_of(distribution: str) -> str | None:
    """Return the installed version of a distribution."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _packages() -> dict[str, str | None]:
    """Return the versions of what the core needs, ``None`` for what is missing."""
    return {each.name: version_of(each.name) for each in _requirements() if each.marker is None}


def _requirements() -> list[Requirement]:
    """Return what the core needs, and behind a marker what each extra does, in alphabetical order."""
    try:
        lines = requires(_DISTRIBUTION) or []
    except PackageNotFoundError:
        lines = ["torch", "transformers", "tokenizers", "pydantic", "hydra-core", "pyarrow"]  # a bare source tree
    return sorted(map(Requirement, lines), key=lambda each: each.name)


def _other_versions() -> list[str]:
    """Return for each package that is there in a version that this one was not written for, what to do."""
    said = []
    for each in _requirements():
        if each.marker is not None and any(each.marker.evaluate({"extra": extra}) for extra in _OF_NO_RUN):
            continue
        number = version_of(each.name)
        if number is not None and not each.specifier.contains(number, prereleases=True):
            wanted = f"{each.name}{each.specifier}"
            said.append(f"{each.name} is {number}, and roll needs {each.specifier}: pip install '{wanted}'")
    return list(dict.fromkeys(said))


def _devices() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found: dict[str, Any] = {"processors": usable, "memory_gb": round(memory / 2**30, 1)}
    if find_spec("torch") is not None:
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        found["gpus"] = [torch.cuda.get_device_name(index) for index in range(count)]
        found["built_for_cuda"] = torch.version.cuda
        if not count:
            from roll.models.slow_bf16 import bf16_slowdown

            found["bf16_slowdown"] = round(bf16_slowdown(), 1)
    return found


def _disk() -> dict[str, Any]:
    here = Path.cwd()
    free = shutil.disk_usage(here).free / 2**30
    return {"folder": str(here), "free_gb": round(free, 1), "writable": os.access(here, os.W_OK)}


def _strategies() -> dict[str, dict[str, Any]]:
    """Return for each engine and trainer whether its package is there, and how to get it."""
    from roll.config.strategies import STRATEGIES, is_installed

    found: dict[str, dict[str, Any]] = {}
    for name in STRATEGIES:
        about = STRATEGIES.get(name)
        wanted = ((about.package, about.install), (about.gpu_package, about.gpu_install))
        missing = [install for module, install in wanted if module and not is_installed(module)]
        found[name] = {"ready": not missing, "install": " and ".join(missing) or None}
    return found


def _ray() -> dict[str, Any]:
    installed = find_spec("ray") is not None
    return {
        "version": version_of("ray"),
        "address": os.environ.get("RAY_ADDRESS"),
        "install": None if installed else "pip install 'roll-rl[ray]'",
    }


def _sandbox() -> dict[str, Any]:
    from roll.sandbox.run import capabilities

    return dataclasses.asdict(capabilities())


def _containers() -> dict[str, str]:
    """Return for each program that runs containers its version, or why it does not work."""
    from roll.sandbox import CONTAINER_PROGRAMS, SandboxUnavailableError, find_container_program

    found: dict[str, str] = {}
    for name in CONTAINER_PROGRAMS:
        try:
            found[name] = f"works, {find_container_program(name).version}" if shutil.which(name) else "not on PATH"
        except SandboxUnavailableError as error:
            found[name] = f"does not work: {error}"
    return found


def _problems(found: dict[str, Any]) -> list[str]:
    """Return what keeps a toy policy from being trained here."""
    problems = [f"{name} is missing: pip install {name}" for name, number in found["packages"].items() if not number]
    if not found["disk"]["writable"]:
        problems.append(f"nothing can be written to {found['disk']['folder']}: start from another folder")
    if found["disk"]["free_gb"] < _LEAST_FREE_GB:
        problems.append(
            f"{found['disk']['free_gb']} GB are free in {found['disk']['folder']}: a run wants {_LEAST_FREE_GB}"
        )
    return problems


def _lines(found: dict[str, Any]) -> list[str]:
    devices, disk, ray = found["devices"], found["disk"], found["ray"]
    gpus = ", ".join(devices.get("gpus") or ()) or "no GPU"
    own = found["roll"] or "(not installed: run from its source)"
    lines = [
        f"roll {own}, Python {found['python']}, {found['platform']}",
        "",
        f"devices    {devices['processors']} processors, {devices['memory_gb']} GB of memory, {gpus}",
        *_number_formats(devices),
        f"disk       {disk['free_gb']} GB free in {disk['folder']}",
        f"ray        {ray['version'] or ray['install']}{f', {where}' if (where := ray['address']) else ''}",
        "packages   " + ", ".join(f"{name} {number or 'MISSING'}" for name, number in found["packages"].items()),
        "",
        "strategies",
    ]
    for name, each in found["strategies"].items():
        lines.append(f"  {name:<18} {'ready' if each['ready'] else each['install']}")
    lines += ["", "sandbox (python -m roll.sandbox tries each wall)"]
    lines += [f"  {name:<18} {value}" for name, value in found["sandbox"].items()]
    lines += ["", "containers (of agents; the sandbox needs none)"]
    lines += [f"  {name:<18} {' '.join(value.split())}" for name, value in found["containers"].items()]
    lines.append("")
    if found["other_versions"]:
        lines += ["Not the versions that roll works with:", *(f"  {each}" for each in found["other_versions"]), ""]
    if found["problems"]:
        return [*lines, "A toy policy cannot be trained here:", *(f"  {problem}" for problem in found["problems"])]
    return [*lines, "A toy policy can be trained here: roll train sokoban"]


def _number_formats(devices: dict[str, Any]) -> list[str]:
    """Return a line that says so where training in bf16 would be slow."""
    slowdown = devices.get("bf16_slowdown")
    if slowdown is None:  # there are GPUs, or no PyTorch
        return []
    from roll.models.slow_bf16 import BEARABLE

    if slowdown <= BEARABLE:
        return []
    return [f"bf16       takes this processor {slowdown:.0f} times as long as fp32: use model_args.dtype=fp32"]
