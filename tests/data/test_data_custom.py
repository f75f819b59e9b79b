from __future__ import annotations

import sys
from pathlib import Path

import pytest
from data_support import TOKENS, load, problems, write_as, write_jsonl

from roll.config.errors import FixableError
from roll.config.objects import load_object
from roll.config.worker import DataArgs
from roll.data import DataError, LengthLimit, load_table

CLASS = """
class Squares:
    def __init__(self, count, file_name=()):
        self.count, self.file_name = count, file_name

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {"prompt": f"{index}^2?", "ground_truth": str(index**2), "files": list(self.file_name)}


class Broken(Squares):
    def __getitem__(self, index):
        return "row"


def fails():
    raise RuntimeError("no connection")


def no_data():
    return 5
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "my_data.py"
    path.write_text(CLASS)
    return path


def custom(path: Path | str, name: str, **kwargs: object) -> dict[str, object]:
    return {"custom_cls": {"path": str(path), "name": name, "kwargs": kwargs}}


def test_a_class_of_ones_own_goes_the_same_way_as_files(module: Path) -> None:
    data = load({**custom(module, "Squares", count=4), "shuffle": False})
    assert len(data) == 4
    prompt = data.at(5)
    assert (prompt.key, prompt.ground_truth, prompt.domain) == ("Squares:2", "1", "math")
    assert prompt.messages == [{"role": "user", "content": "1^2?"}]
    assert prompt.row["files"] == []
    assert data.report.read == 4
    assert len(load({**custom(module, "Squares", count=4), "max_samples": 2})) == 2


def test_file_names_are_handed_to_the_class(module: Path) -> None:
    data = load({**custom(module, "Squares", count=1), "file_name": ["a.bin", "b.bin"]})
    assert data.at(0).row["files"] == ["a.bin", "b.bin"]


def test_the_datasets_library_itself_can_be_the_class(tmp_path: Path) -> None:
    import datasets

    datasets.Dataset.from_list(problems(3)).save_to_disk(str(tmp_path / "saved"))
    data = load({**custom("datasets", "load_from_disk", dataset_path=str(tmp_path / "saved")), "shuffle": False})
    assert [data.at(position).ground_truth for position in range(3)] == ["0", "1", "2"]


def test_what_is_wrong_with_a_class_is_said(module: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"fails\(\) raised RuntimeError: no connection"):
        load(custom(module, "fails"))
    with pytest.raises(DataError, match="int has no __len__ and no __getitem__"):
        load(custom(module, "no_data"))
    with pytest.raises(DataError, match="row 0 is str, not a mapping"):
        load(custom(module, "Broken", count=2))
    with pytest.raises(DataError, match="has no rows"):
        load(custom(module, "Squares", count=0))
    with pytest.raises(DataError, match="did you mean 'Squares'"):
        load(custom(module, "Sqares", count=1))


def test_validation_gives_every_prompt_of_every_file_in_order(tmp_path: Path) -> None:
    one = write_jsonl(tmp_path / "one.jsonl", [*problems(2), *problems(1, "code")])
    two = write_as(tmp_path, ".csv", problems(1))
    args = DataArgs(file_name=[str(one), str(two)])
    table = load_table(args, {"all": ["math", "code"]}, LengthLimit(None, "error", **TOKENS))
    assert [(prompt.key, prompt.tag) for prompt in table] == [
        ("one.jsonl:1", "math"),
        ("one.jsonl:2", "math"),
        ("one.jsonl:3", "code"),
        ("data.csv:2", "math"),
    ]
    assert [prompt.key for prompt in table[1:3]] == ["one.jsonl:2", "one.jsonl:3"]


def test_a_file_is_executed_once_and_files_of_one_name_stay_apart(tmp_path: Path) -> None:
    for folder, value in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(f"class Mine:\n    value = {value}\n")
    first = load_object(str(tmp_path / "a" / "mine.py"), "Mine")
    assert load_object(str(tmp_path / "b" / ".." / "a" / "mine.py"), "Mine") is first
    assert load_object(str(tmp_path / "b" / "mine.py"), "Mine").value == 2
    assert first.value == 1


def test_a_file_that_is_already_imported_is_not_executed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_before.py").write_text("class Mine:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import imported_before  # type: ignore[import-not-found]

    try:
        assert load_object(str(tmp_path / "imported_before.py"), "Mine") is imported_before.Mine
        assert load_object("imported_before", "Mine") is imported_before.Mine
    finally:
        del sys.modules["imported_before"]


def test_objects_that_cannot_be_loaded_say_why(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("x = 1\ndef f(:\n")
    (tmp_path / "needs.py").write_text("import not_installed_here\n")
    with pytest.raises(FixableError, match="wrong.py failed, line 2: SyntaxError"):
        load_object(str(tmp_path / "wrong.py"), "f")
    with pytest.raises(FixableError, match="ModuleNotFoundError: No module named 'not_installed_here'"):
        load_object(str(tmp_path / "needs.py"), "f")
    with pytest.raises(FixableError, match="did you mean 'wrong.py'"):
        load_object(str(tmp_path / "wrnog.py"), "f")
    with pytest.raises(FixableError, match="there is no module 'no_such_package.part'"):
        load_object("no_such_package.part", "f")
    assert load_object("json", "dumps")(1) == "1"
    with pytest.raises(FixableError, match="did you mean 'dumps'"):
        load_object("json", "dump_s")
    assert not [name for name in sys.modules if name.startswith("roll_file_needs")]
