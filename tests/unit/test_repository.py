"""The files around the code keep their promises: make targets, README, image, compose, hooks, packaging."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.embedded import applications
from service.settings import Settings

ROOT = Path(__file__).parents[2]
TARGETS = ("setup", "demo", "test", "test-all", "lint", "format", "bench", "openapi", "docs", "lock", "clean")
OWN_SERVICES = ("migrate", "api", "relay", "worker")
REQUIRED = {"POSTGRES_PASSWORD": "database-password", "VITAILOR_BOOTSTRAP_KEY": "first-key"}


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def compose(name: str = "docker-compose.yml") -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(read(name))
    return document


def project() -> dict[str, Any]:
    document: dict[str, Any] = tomllib.loads(read("pyproject.toml"))
    return document


# --- make ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_make_has_the_target(target: str) -> None:
    dry = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert dry.returncode == 0, dry.stderr


def test_make_names_no_target_that_is_not_checked_here() -> None:
    named = re.findall(r"^([a-z][a-z-]*):.*## ", read("Makefile"), flags=re.MULTILINE)
    assert sorted(named) == sorted(("help", *TARGETS))


def test_setup_asks_for_a_python_that_is_new_enough(tmp_path: Path) -> None:
    """On a machine with an old Python only, make says what is missing instead of failing later."""
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    for name in ("Makefile", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    for tool in ("make", "sh", "echo", "test", "env"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    made = subprocess.run(
        ["make", "setup"], cwd=tmp_path, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert made.returncode != 0
    assert "needs Python 3.11 or newer" in made.stderr


def test_continuous_integration_lints_and_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    commands = [line for line in script.read_text().splitlines() if line.startswith("make ")]
    assert commands == ["make lint", "make test"]


# --- packages --------------------------------------------------------------------------------------------------------


def pins() -> dict[str, str]:
    lines = [line for line in read("requirements.txt").splitlines() if line and not line.startswith("#")]
    pairs = [line.split("==") for line in lines]
    assert all(len(pair) == 2 for pair in pairs), "every line is name==version"
    return {normal(name): version for name, version in pairs}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_direct_dependency_is_pinned() -> None:
    meta = project()["project"]
    wanted = [*meta["dependencies"], *meta["optional-dependencies"]["dev"]]
    names = {normal(re.split(r"[\[<>=~! ]", requirement)[0]) for requirement in wanted}
    assert names - set(pins()) == set()


def test_the_installed_packages_are_the_pinned_ones() -> None:
    """What the tests prove, they prove of these versions."""
    frozen = subprocess.run(
        [sys.executable, "-m", "pip", "freeze", "--exclude-editable"], capture_output=True, text=True, check=True
    )
    installed = dict(line.split("==") for line in frozen.stdout.splitlines() if "==" in line)
    # A build variant, such as +cpu, is the same version.
    found = {normal(name): version.partition("+")[0] for name, version in installed.items()}
    assert {name: found.get(name) for name in pins()} == pins()


def test_the_licence_is_the_one_that_the_package_names() -> None:
    assert project()["project"]["license"] == "Apache-2.0"
    assert "Apache License\n                           Version 2.0, January 2004" in read("LICENSE")


def test_the_command_is_installed() -> None:
    assert project()["project"]["scripts"] == {"vitailor": "service.cli.main:main"}


def package_data() -> Iterator[Path]:
    """Files below the packages that are not Python modules of a package, so setuptools has to be told of them."""
    for package in ("service", "workers", "search", "models"):
        for path in (ROOT / package).rglob("*"):
            is_module = path.suffix == ".py" and (path.parent / "__init__.py").exists()
            if path.is_file() and not is_module and "__pycache__" not in path.parts:
                yield path.relative_to(ROOT)


def test_every_data_file_of_the_packages_is_packaged() -> None:
    globs = project()["tool"]["setuptools"]["package-data"]
    packaged = {
        path.relative_to(ROOT) for name, patterns in globs.items() for g in patterns for path in (ROOT / name).glob(g)
    }
    assert set(package_data()) - packaged == set()


# --- hooks -----------------------------------------------------------------------------------------------------------


def test_hooks_use_only_the_tools_of_the_virtual_environment() -> None:
    repos = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    assert all(hook["entry"].startswith(".venv/bin/") for repo in repos for hook in repo["hooks"])


# --- image -----------------------------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n\s*", " ", read("Dockerfile"))
    lines = [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_image_runs_as_an_unprivileged_user_with_a_number() -> None:
    users = [rest for word, rest in instructions() if word == "USER"]
    assert users
    assert all(re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", user) for user in users)


def test_the_image_starts_from_a_tag_and_installs_pinned_versions() -> None:
    assert [rest for word, rest in instructions() if word == "FROM"] == ["python:3.12-slim"]
    installs = [rest for word, rest in instructions() if word == "RUN" and "pip install" in rest]
    assert any("--constraint requirements.txt" in install for install in installs)
    assert all("--no-cache-dir" in install for install in installs)


def test_the_image_copies_only_what_the_build_context_lets_through() -> None:
    allowed = {line[1:] for line in read(".dockerignore").splitlines() if line.startswith("!")}
    copied = {source for word, rest in instructions() if word == "COPY" for source in rest.split()[:-1]}
    assert copied <= allowed
    assert all((ROOT / source).exists() for source in copied)


# --- compose ---------------------------------------------------------------------------------------------------------


def test_compose_runs_the_commands_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    services = compose()["services"]
    modules = {name: services[name]["command"] for name in OWN_SERVICES}
    assert modules["migrate"] == ["python", "-m", "service.db.migrate"]
    source = Path(applications.__file__).read_text(encoding="utf-8")
    for name in ("api", "relay", "worker"):
        python, flag, module = modules[name]
        assert (python, flag) == ("python", "-m")
        assert f'_module("{module}")' in source


def test_compose_uses_one_image_for_the_service() -> None:
    services = compose()["services"]
    assert len({services[name]["image"] for name in OWN_SERVICES}) == 1
    assert services["api"]["image"].endswith(project()["project"]["version"])


def test_compose_keeps_no_secret() -> None:
    """Passwords and keys come from required variables: without them compose refuses to start."""
    text = read("docker-compose.yml")
    for variable in REQUIRED:
        uses = re.findall(rf"\$\{{{variable}([^}}]*)\}}", text)
        assert uses
        assert all(use.startswith(":?") for use in uses)


def test_compose_knows_every_variable_that_it_sets() -> None:
    known = {f"VITAILOR_{name.upper()}" for name in Settings.model_fields}
    for name in ("docker-compose.yml", "docker-compose.gpu.yml"):
        for service in compose(name)["services"].values():
            assert {v for v in service.get("environment", {}) if v.startswith("VITAILOR_")} <= known


def test_compose_starts_in_order_and_reaps_orphans() -> None:
    services = compose()["services"]
    for name in ("api", "relay", "worker"):
        assert services[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    assert all(service["init"] for service in services.values())
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}


def test_compose_judges_health_by_an_answer() -> None:
    services = compose()["services"]
    assert "--command=SELECT 1" in services["postgres"]["healthcheck"]["test"]
    assert services["valkey"]["healthcheck"]["test"] == ["CMD", "valkey-cli", "ping"]
    assert "/readyz" in services["api"]["healthcheck"]["test"][-1]


def test_compose_gives_postgres_its_volume_where_version_18_keeps_data() -> None:
    postgres = compose()["services"]["postgres"]
    assert postgres["image"] == "postgres:18"
    assert postgres["volumes"] == ["postgres:/var/lib/postgresql"]


def test_compose_keeps_the_broker_in_memory_without_evictions() -> None:
    command = compose()["services"]["valkey"]["command"]
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"
    assert command[command.index("--appendonly") + 1] == "no"
    assert command[command.index("--save") + 1] == ""


def test_compose_publishes_the_api_to_this_machine_only() -> None:
    services = compose()["services"]
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert len(published) == 1
    assert published[0].startswith("127.0.0.1:")


def test_compose_gives_a_worker_time_for_its_checkpoint() -> None:
    grace_s = int(compose()["services"]["worker"]["stop_grace_period"].removesuffix("s"))
    assert grace_s > 2 * Settings.model_fields["stop_grace_s"].default


def test_the_gpu_file_only_adds_a_device_to_the_worker() -> None:
    assert list(compose("docker-compose.gpu.yml")["services"]) == ["worker"]
    [device] = compose("docker-compose.gpu.yml")["services"]["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]


# --- documentation ---------------------------------------------------------------------------------------------------


def documents() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def test_the_readme_shows_the_two_commands() -> None:
    assert re.search(r"^\s*make demo\b", read("README.md"), flags=re.MULTILINE)
    assert re.search(r"^\s*make test\b", read("README.md"), flags=re.MULTILINE)


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_files_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    local = [link for link in links if not link.startswith(("http://", "https://"))]
    assert [link for link in local if not (document.parent / link).exists()] == []


def test_every_decision_is_listed() -> None:
    index = read("docs/decisions/README.md")
    records = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert records == re.findall(r"\]\(([0-9][^)]*)\)", index)
