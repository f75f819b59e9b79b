import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from builtin_tags import BUILTIN_TAGS

import roll.envs
from roll.common.registry import names_of_configurations_end
from roll.envs import Outcome, TextEnv
from roll.envs.errors import (
    DuplicateNameError,
    EnvConfigError,
    MissingDependencyError,
    UnknownEnvTypeError,
    UnknownTagError,
)


class Counting(TextEnv):
    """Say the next number."""

    def __init__(self, first: int = 1, max_steps: int | None = 5) -> None:
        super().__init__(action_pattern="", max_steps=max_steps)
        self.first = first

    def start(self):
        return str(self.first)

    def act(self, action):
        right = action == str(self.first + 1)
        return Outcome(action, {"right": float(right)}, terminated=right, success=right)


@pytest.fixture
def forget():
    """Names to unregister after the test."""
    names = []
    yield names
    for name in names:
        roll.envs.unregister(name)


def test_builtin_tags_are_there_without_configuration():
    assert set(roll.envs.list_tags()) >= set(BUILTIN_TAGS)
    env = roll.envs.make("LargerSokoban")
    assert (env.dim_room, env.num_boxes, env.max_steps) == ((8, 8), 2, 30)


def test_decorator_registers_a_type_and_a_tag(forget):
    forget.append("counting")
    decorated = roll.envs.register_env("counting", env_config={"first": 3}, max_steps=2)(Counting)
    assert decorated is Counting
    env = roll.envs.make("counting", seed=0)
    assert (env.reset()[0], env.max_steps) == ("3", 2)
    assert roll.envs.make("counting", first=8, max_steps=4).max_steps == 4
    assert env.step("4")[4]["metrics"]["success"] == 1.0
    assert roll.envs.get_env_class("counting") is Counting


def test_registering_the_same_class_twice_is_fine_and_another_is_not(forget):
    forget.append("counting")
    roll.envs.register_env("counting")(Counting)
    roll.envs.register_env("counting")(Counting)

    class Other(Counting):
        pass

    with pytest.raises(DuplicateNameError, match="choose another name"):
        roll.envs.register_env("counting")(Other)
    with pytest.raises(DuplicateNameError, match="replace=True"):
        roll.envs.register_tag("counting", env_type="sokoban")


def test_yaml_mapping_registers_tags(forget):
    forget += ["Tiny", "Wide"]
    omegaconf = pytest.importorskip("omegaconf")
    config = omegaconf.OmegaConf.create(
        """
        Tiny:
          env_type: sokoban
          max_steps: 4
          max_tokens_per_step: 32
          use_thread_lock: true
          agent_template: "{observation}"
          env_manager_cls: null
          env_config: {dim_room: [5, 5], grid_lookup: {0: "%", "1": "."}, grid_vocab: {"%": rock}}
        Wide: {env_type: frozen_lake, env_config: {size: 7}}
        """
    )
    tags = roll.envs.register_tags_from_config(config)
    assert [tag.name for tag in tags] == ["Tiny", "Wide"]
    env = roll.envs.make("Tiny", seed=1)
    assert env.reset()[0].startswith("%%%%%\n")
    assert (env.max_steps, env.dim_room) == (4, (5, 5))
    assert "% rock" in env.instruction
    assert roll.envs.get_tag("Tiny").max_tokens_per_step == 32
    assert type(roll.envs.get_tag("Tiny").env_config["dim_room"]) is list
    assert roll.envs.make("Wide").size == 7


def test_yaml_may_redefine_a_builtin_tag():
    with roll.envs.TAGS.restored():
        roll.envs.register_tags_from_config({"SimpleSokoban": {"env_type": "sokoban", "env_config": {"num_boxes": 2}}})
        assert roll.envs.make("SimpleSokoban").num_boxes == 2
    assert roll.envs.make("SimpleSokoban").num_boxes == 1


def test_tags_of_a_configuration_end_with_it_and_those_of_its_modules_stay():
    mine = {"env_type": "sokoban", "env_config": {"num_boxes": 2}}
    with names_of_configurations_end():
        roll.envs.register_tag("OfAModule", env_type="sokoban")  # what a module does when a run imports it
        roll.envs.register_tags_from_config({"SimpleSokoban": mine, "OfAModule": mine, "New": mine})
        outer = roll.envs.get_tag("SimpleSokoban")
        with names_of_configurations_end():  # a run inside of a run: a stage, an evaluation
            roll.envs.register_tags_from_config({"SimpleSokoban": {"env_type": "frozen_lake"}, "New": mine})
            assert roll.envs.get_tag("SimpleSokoban").env_type == "frozen_lake"
        assert roll.envs.get_tag("SimpleSokoban") is outer and "New" in roll.envs.TAGS
        assert roll.envs.make("OfAModule").num_boxes == 2
    assert roll.envs.make("SimpleSokoban").num_boxes == roll.envs.make("OfAModule").num_boxes == 1
    assert "New" not in roll.envs.TAGS


def test_shipped_tag_library_defines_tags_of_the_same_names():
    omegaconf = pytest.importorskip("omegaconf")
    path = Path(__file__).parents[2] / "roll" / "presets" / "config" / "envs.yaml"
    library = omegaconf.OmegaConf.load(path)
    omegaconf.OmegaConf.resolve(library)
    assert len([roll.envs.get_tag(name) for name in library.custom_env]) >= 5
    with roll.envs.TAGS.restored():
        for tag in roll.envs.register_tags_from_config(library.custom_env):
            env = roll.envs.make(tag, seed=0)
            assert env.reset()[0] in env.observation_space
            assert env.max_steps == tag.max_steps


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"env_type": "sokoban", "env_confg": {}}, r"custom_envs\.New: unknown key 'env_confg'.*'env_config'"),
        ({"env_config": {}}, "env_type is missing"),
        ({"env_type": "sokoban", "env_config": 3}, "expected a mapping"),
        ("sokoban", "expected a mapping"),
    ],
)
def test_wrong_tag_definition_names_the_place_and_registers_nothing(options, message):
    with pytest.raises(EnvConfigError, match=message):
        roll.envs.register_tags_from_config({"Good": {"env_type": "sokoban"}, "New": options})
    assert "Good" not in roll.envs.list_tags()


def test_unknown_names_suggest_close_ones(forget):
    with pytest.raises(UnknownTagError, match="Did you mean 'SimpleSokoban'"):
        roll.envs.make("simplesokobn")
    with pytest.raises(UnknownTagError, match="Known: .*FrozenLake"):
        roll.envs.get_tag("zzz")
    forget.append("Bad")
    roll.envs.register_tag("Bad", env_type="sokobann")
    with pytest.raises(UnknownEnvTypeError, match="'sokoban'"):
        roll.envs.make("Bad")


def test_unknown_option_names_the_tag_and_the_nearest_option():
    with pytest.raises(EnvConfigError, match="'SimpleSokoban': SokobanEnv has no option 'num_box'.*'num_boxes'"):
        roll.envs.make("SimpleSokoban", num_box=2)
    with pytest.raises(EnvConfigError, match="tag 'SimpleSokoban': .*too small"):
        roll.envs.make("SimpleSokoban", dim_room=[4, 4])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"max_callz": 1}, r"tool_use.max_callz: unknown key. Fix: did you mean max_calls\?"),
        ({"max_calls": 0}, r"tool_use.max_calls: .*greater than or equal to 1"),
        ({"formats": ["hermess"]}, r"tool_use.formats.*hermes"),
    ],
)
def test_wrong_limits_of_tools_are_told_from_python_as_in_a_configuration(given, told):
    tag = roll.envs.Tag("x", "frozen_lake", tools=["calculator"], tool_use=given)
    with pytest.raises(EnvConfigError, match=f"tag 'x': {told}"):
        roll.envs.make(tag)


def test_an_environment_that_brings_tools_hides_none_of_a_tag():
    class WithATelephone(roll.envs.get_env_class("frozen_lake")):
        toolbox = None

    roll.envs.register_env("with_a_telephone")(WithATelephone)
    with pytest.raises(EnvConfigError, match="tag 'x': WithATelephone brings tools of its own"):
        roll.envs.make(roll.envs.Tag("x", "with_a_telephone", tools=["calculator"]))


def test_seed_of_make_is_used_once_by_the_first_unseeded_reset():
    env = roll.envs.make("SimpleSokoban", seed=3)
    first, second = env.reset()[0], env.reset()[0]
    other = roll.envs.make("SimpleSokoban")
    assert first == other.reset(seed=3)[0]
    assert second == other.reset()[0] != first
    assert roll.envs.make("SimpleSokoban", seed=3).reset(seed=4)[0] == other.reset(seed=4)[0] != first


def install(folder, module, code, entry_point):
    """Lay out a package as pip would: a module and its metadata."""
    (folder / f"{module}.py").write_text(textwrap.dedent(code))
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\nProvides-Extra: web\n")
    (metadata / "entry_points.txt").write_text(f"[roll.envs]\n{entry_point}\n")


def test_entry_point_is_listed_without_import_and_loaded_when_used(tmp_path, monkeypatch, forget):
    forget.append("plugged")
    code = """
        from roll.envs import Outcome, TextEnv
        class Plugged(TextEnv):
            def __init__(self, word="hi"):
                super().__init__(action_pattern="")
                self.word = word
            def start(self):
                return self.word
            def act(self, action):
                return Outcome("bye", {})
    """
    install(tmp_path, "plugged_package", code, "plugged = plugged_package:Plugged")
    monkeypatch.syspath_prepend(tmp_path)
    assert "plugged" in roll.envs.list_tags()
    assert roll.envs.get_tag("plugged").env_type == "plugged"
    assert "plugged_package" not in sys.modules
    assert roll.envs.make("plugged", word="yo").reset(seed=0)[0] == "yo"
    monkeypatch.delitem(sys.modules, "plugged_package")


def test_missing_dependency_is_an_error_at_use_naming_the_extra(tmp_path, monkeypatch):
    install(tmp_path, "webby", "import no_such_browser_library", "webby_env = webby:Env [web]")
    monkeypatch.syspath_prepend(tmp_path)
    assert "webby_env" in roll.envs.list_tags()
    with pytest.raises(MissingDependencyError, match=r"'no_such_browser_library'.*pip install 'webby\[web\]'"):
        roll.envs.make("webby_env")


def test_registry_is_readable_while_others_write(forget):
    stop = threading.Event()

    def write():
        number = 0
        while not stop.is_set():
            name = f"busy{number % 50}"
            roll.envs.register_tag(name, env_type="sokoban", replace=True)
            roll.envs.unregister(name)
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            tags = list(pool.map(lambda _: roll.envs.get_tag("SimpleSokoban").env_type, range(2000)))
            names = list(pool.map(lambda _: "SimpleSokoban" in roll.envs.list_tags(), range(20)))
    finally:
        stop.set()
        writer.join()
    assert tags == ["sokoban"] * 2000
    assert all(names)


@pytest.mark.processes
def test_import_stays_light():
    script = (
        "import sys, roll.envs; roll.envs.make('SimpleSokoban', seed=0).reset();"
        "print([m for m in ('torch', 'ray', 'transformers', 'PIL', 'omegaconf') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.processes
def test_gymnasium_finds_the_environments_after_import():
    script = "import gymnasium; print(gymnasium.make('roll.envs:roll/Sokoban-v0').reset(seed=0)[0][:6])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "######"


@pytest.mark.exhaustive
@pytest.mark.processes
def test_an_environment_of_a_wheel_is_found_and_made(tmp_path):
    """Built by setuptools and installed by pip, as a package that somebody else publishes."""
    package = tmp_path / "source"
    package.mkdir()
    (package / "caves.py").write_text(
        textwrap.dedent("""
            from roll.envs import Outcome, TextEnv
            class Cave(TextEnv):
                def __init__(self, depth=3):
                    super().__init__(action_pattern="")
                    self.depth = depth
                def start(self):
                    return f"{self.depth} floors"
                def act(self, action):
                    return Outcome("up", {}, terminated=True)
        """)
    )
    (package / "pyproject.toml").write_text(
        textwrap.dedent("""
            [build-system]
            requires = ["setuptools"]
            build-backend = "setuptools.build_meta"
            [project]
            name = "caves"
            version = "1.0"
            [project.entry-points."roll.envs"]
            cave = "caves:Cave"
            [tool.setuptools]
            py-modules = ["caves"]
        """)
    )
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheels, installed = tmp_path / "wheels", tmp_path / "installed"
    for words in (
        ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(package)],
        ["install", "--no-deps", "--no-index", "--target", str(installed), "--find-links", str(wheels), "caves"],
    ):
        subprocess.run([*pip, *words], check=True, capture_output=True, timeout=300)
    code = "import roll.envs; print('cave' in roll.envs.list_tags(), roll.envs.make('cave', depth=7).reset(seed=1)[0])"
    path = os.pathsep.join([str(installed), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.stdout.strip() == "True 7 floors", done.stderr
