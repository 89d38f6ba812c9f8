from __future__ import annotations

from pathlib import Path

import pytest

from search.errors import SpaceError
from search.plugins import PluginError, PluginGroup, load_plugin, plugin_names
from search.presets import PresetName, preset_names, resolve
from tests.plugins import install, install_example

SPACES, METRICS = PluginGroup.SPACES.value, PluginGroup.METRICS.value


def test_without_packages_there_are_the_built_in_names_alone() -> None:
    assert plugin_names(PluginGroup.METRICS) == ()
    assert preset_names() == tuple(PresetName)


def test_the_space_of_a_package_is_chosen_and_changed_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_example(tmp_path, monkeypatch)
    assert preset_names() == (*PresetName, "shallow")
    space = resolve("shallow", img_size=8, in_chans=1, overrides={"depth": [2]})
    assert (space.name, space.depth, space.patch_size, space.in_chans) == ("shallow", (2,), 2, 1)
    with pytest.raises(SpaceError, match="masktas-base-8-10, shallow"):
        resolve("deep")


def test_built_in_names_go_before_those_of_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "impostor", "SPACE = None\n", {SPACES: {"micro": "impostor:SPACE"}})
    assert preset_names() == tuple(PresetName)
    assert resolve("micro").name == "micro"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import no_such_module\n", r"package faulty\d+ 1.0, faulty\d+:make\) failed: ModuleNotFoundError when it was"),
        ("raise SystemError('secret')\n", r"failed: SystemError when it was imported\.$"),
        ("other = 1\n", r"failed: AttributeError"),
        ("make = 1\n", r"cannot be used: it is int, needed is str"),
    ],
)
def test_a_plug_in_that_does_not_work_is_named_and_harms_nobody_else(
    code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"faulty{len(code)}"  # a module is imported once in a process
    install(tmp_path, monkeypatch, name, code, {METRICS: {"broken": f"{name}:make"}})
    assert plugin_names(PluginGroup.METRICS) == ("broken",)
    with pytest.raises(PluginError, match=f"'broken' of group vitailor.metrics.*{message}"):
        load_plugin(PluginGroup.METRICS, "broken", str)


def test_a_name_that_two_packages_claim_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second"):
        install(tmp_path / name, monkeypatch, name, "make = 'x'\n", {METRICS: {"mine": f"{name}:make"}})
    with pytest.raises(PluginError, match=r"found package .*, package .*, needed is exactly one"):
        load_plugin(PluginGroup.METRICS, "mine", str)
