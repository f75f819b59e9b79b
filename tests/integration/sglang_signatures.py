"""Write down the signatures that the adapter relies on, from the real package: nothing of it is imported or run.

pip download --no-deps --dest /tmp/sglang sglang==0.5.23
python tests/integration/sglang_signatures.py /tmp/sglang/sglang-*.whl [--check]
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_name("sglang_signatures.json")

METHODS = {
    "Engine": (
        ("sglang/srt/entrypoints/engine.py",),
        ("__init__", "async_generate", "shutdown", "_serialize_tensors_per_rank"),
    ),
    "ModelConfig": (("sglang/srt/configs/model_config.py",), ("_get_hf_eos_token_id",)),
    "TokenizerManager": (
        ("sglang/srt/managers/tokenizer_manager.py", "sglang/srt/managers/tokenizer_control_mixin.py"),
        (
            "abort_request",
            "auto_create_handle_loop",
            "handle_loop",
            "pause_generation",
            "continue_generation",
            "begin_weight_update",
            "end_weight_update",
            "update_weights_from_tensor",
            "flush_cache",
            "release_memory_occupation",
            "resume_memory_occupation",
        ),
    ),
}
RECORDS = (
    "BeginWeightUpdateReqInput",
    "ContinueGenerationReqInput",
    "EndWeightUpdateReqInput",
    "FlushCacheReqOutput",
    "PauseGenerationReqInput",
    "ReleaseMemoryOccupationReqInput",
    "ResumeMemoryOccupationReqInput",
    "UpdateWeightsFromTensorReqInput",
)
IO_STRUCT = "sglang/srt/managers/io_struct.py"
SAMPLING = "sglang/srt/sampling/sampling_params.py"
ARGUMENT_FOLDER = "sglang/srt/arg_groups/fields/"


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[list[Any]]:
    """Return name, kind and whether there is a default of every parameter but ``self``."""
    spec = function.args
    positional = [*spec.posonlyargs, *spec.args]
    bare = len(positional) - len(spec.defaults)
    rows: list[list[Any]] = [
        [argument.arg, "positional_or_keyword", number >= bare] for number, argument in enumerate(positional)
    ]
    rows += [
        [argument.arg, "keyword_only", default is not None]
        for argument, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
    ]
    if spec.kwarg:
        rows.append([spec.kwarg.arg, "var_keyword", True])
    return rows[1:] if rows and rows[0][0] == "self" else rows


def fields(node: ast.ClassDef) -> dict[str, Any]:
    """Return which fields have a default, and the values that a ``Literal`` field takes."""
    found = {}
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            choices = []
            annotation = item.annotation
            if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
                choices = list(ast.literal_eval(annotation.slice))
            found[item.target.id] = {"default": item.value is not None, "choices": choices}
    return found


def extract(wheel: Path) -> dict[str, Any]:
    """Return everything that is recorded, from a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        tree = {name: ast.parse(archive.read(name)) for files, _ in METHODS.values() for name in files}
        tree |= {name: ast.parse(archive.read(name)) for name in (IO_STRUCT, SAMPLING)}
        arguments = sorted(
            name
            for file in archive.namelist()
            if file.startswith(ARGUMENT_FOLDER) and file.endswith(".py")
            for node in ast.parse(archive.read(file)).body
            if isinstance(node, ast.ClassDef)
            for name in fields(node)
            if not name.startswith("_")
        )
    methods: dict[str, Any] = {}
    for owner, (files, names) in METHODS.items():
        defined = {
            node.name: node
            for file in files
            for top in tree[file].body
            if isinstance(top, ast.ClassDef)
            for node in top.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        methods[owner] = {
            name: {
                "asynchronous": isinstance(defined[name], ast.AsyncFunctionDef),
                "parameters": parameters(defined[name]),
            }
            for name in names
        }
    records = {node.name: fields(node) for node in tree[IO_STRUCT].body if isinstance(node, ast.ClassDef)}
    sampling = next(node for node in tree[SAMPLING].body if isinstance(node, ast.ClassDef))
    return {
        "version": wheel.name.split("-")[1],
        "methods": methods,
        "records": {name: records[name] for name in RECORDS},
        "sampling": sorted(name for name in fields(sampling) if not name.startswith("_")),
        "arguments": arguments,
    }


def lines(value: Any, depth: int = 0) -> str:
    """Return JSON with a line for each method and record, so that a change shows in a diff."""
    if isinstance(value, dict) and depth < 3 and "parameters" not in value:
        inner = ",\n".join(
            f"{' ' * (depth + 1)}{json.dumps(key)}: {lines(item, depth + 1)}" for key, item in value.items()
        )
        return f"{{\n{inner}\n{' ' * depth}}}" if inner else "{}"
    return json.dumps(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--check", action="store_true", help="compare with what is recorded; write nothing")
    arguments = parser.parse_args()
    text = lines(extract(arguments.wheel)) + "\n"
    if not arguments.check:
        RECORDED.write_text(text)
    elif text != RECORDED.read_text():
        sys.exit(f"{RECORDED} differs from {arguments.wheel.name}")


if __name__ == "__main__":
    main()
