"""What a visitor of the repository meets: versions that agree, workflows, templates, hooks."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import tightz as tz
from tightz.cli.main import main
from verification import package

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[0-9]*.yml"))

LINUX_ONLY = re.compile(
    r"\bnp\.longdouble\b|\btests\.hostile\b|\bimport (?:resource|fcntl|pty)\b"
    r"|\bSIG(?:KILL|INT)\b|\bchmod\b|\bpreexec_fn\b|\bos\.(?:fork|getuid|geteuid)\b|\"/(?:dev|proc|tmp)|\bbash\b"
)


def load(path: Path) -> dict[Any, Any]:
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(found, dict), path
    return found


def name(path: Path) -> str:
    return path.name


# Versions -----------------------------------------------------------------------------------


def test_all_files_state_the_version_that_is_imported() -> None:
    assert package.agreed() == package.agreed(f"v{tz.__version__}") == tz.__version__
    assert load(ROOT / "CITATION.cff")["version"] == tz.__version__


@pytest.mark.parametrize(
    "changed", ["pyproject.toml", "CITATION.cff", "CHANGELOG.md", "version.py"]
)
def test_a_version_that_differs_anywhere_stops_a_release(tmp_path: Path, changed: str) -> None:
    for file in package.stated():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    assert package.agreed(root=tmp_path) == tz.__version__
    with pytest.raises(SystemExit, match=r"differ.*99\.0"):
        package.agreed("v99.0", tmp_path)
    [path] = [tmp_path / file for file in package.stated() if file.endswith(changed)]
    path.write_text(path.read_text(encoding="utf-8").replace(tz.__version__, "98.0", 1))
    with pytest.raises(SystemExit, match=r"differ.*98\.0"):
        package.agreed(root=tmp_path)


def test_the_changelog_is_dated_and_names_what_there_is() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    [_, *parts] = re.split(r"^## ", text, flags=re.MULTILINE)
    coming = parts.pop(0) if parts[0].startswith("Unreleased\n") else ""
    [heading, newest] = parts[0].split("\n", 1)
    released = load(ROOT / "CITATION.cff")["date-released"]
    assert heading == f"{tz.__version__} ({released})"
    newest += coming
    for public in re.findall(r"\btz\.(\w+)", newest):
        assert public in tz.__all__, f"CHANGELOG.md names tz.{public}"
    for command in re.findall(r"`tightz ([a-z-]+)", newest):
        assert command in main.commands, f"CHANGELOG.md names tightz {command}"


# Workflows ----------------------------------------------------------------------------------


def test_there_are_workflows_for_tests_docs_and_releases() -> None:
    assert [path.name for path in WORKFLOWS] == ["docs.yml", "release.yml", "test.yml"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
def test_a_workflow_asks_for_little(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["group"]
    assert "secrets." not in path.read_text(encoding="utf-8")
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"]
        if job.get("permissions"):  # more than reading only where an environment guards it
            assert job["environment"]
            assert "contents" not in job["permissions"]
        for step in job["steps"]:
            action = step.get("uses")
            assert action is None or re.search(r"@(release/)?v\d+$", action), action
            if action and action.startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_every_python_that_is_declared_is_tested_and_tried() -> None:
    classifiers = package.tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "classifiers"
    ]
    declared = [c.rpartition(" ")[2] for c in classifiers if re.search(r":: 3\.\d+$", c)]
    jobs = load(ROOT / ".github/workflows/test.yml")["jobs"]
    assert jobs["linux"]["strategy"]["matrix"]["python"] == declared
    assert jobs["linux"]["steps"][-1]["run"] == "make test"
    assert jobs["elsewhere"]["strategy"]["matrix"]["python"] == declared
    release = (ROOT / ".github/workflows/release.yml").read_text()
    assert all(f"python{version}" in release for version in declared)


def test_what_runs_elsewhere_needs_nothing_of_linux() -> None:
    steps = load(ROOT / ".github/workflows/test.yml")["jobs"]["elsewhere"]["steps"]
    files = re.findall(r"tests/\w+\.py", steps[-1]["run"])
    assert len(files) > 10
    for file in files:
        assert not LINUX_ONLY.search((ROOT / file).read_text(encoding="utf-8")), file
    assert LINUX_ONLY.search((ROOT / "tests/test_store.py").read_text(encoding="utf-8"))


def test_the_hooks_are_local() -> None:
    repos = load(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    entries = [hook["entry"] for hook in repos[0]["hooks"]]
    assert {entry.split()[0] for entry in entries} == {".venv/bin/ruff", ".venv/bin/mypy"}


# Templates and pages ------------------------------------------------------------------------


def test_a_wrong_bound_is_the_first_form() -> None:
    assert [path.stem for path in FORMS] == ["1_wrong_bound", "2_bug", "3_feature"]
    asked = load(FORMS[0])["body"]
    required = {f["id"] for f in asked if f.get("validations", {}).get("required")}
    assert required == {"model", "command", "output", "truth", "doctor"}
    assert load(ROOT / ".github/ISSUE_TEMPLATE/config.yml")["blank_issues_enabled"] is True


@pytest.mark.parametrize("path", FORMS, ids=name)
def test_a_form_is_whole(path: Path) -> None:
    form = load(path)
    assert form["name"]
    assert form["description"]
    ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert len(ids) == len(set(ids)) > 0
    for field in form["body"]:
        assert field["type"] in ("markdown", "textarea")
        assert field["attributes"]["value" if field["type"] == "markdown" else "label"]


@pytest.mark.parametrize(
    "page",
    ["SECURITY.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md", ".github/pull_request_template.md"],
)
def test_pages_at_the_door_link_what_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert len(text) > 500
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), f"{page} links {target}"


def test_no_merge_was_left_half_done() -> None:
    folders = ("src", "tests", "docs", "benchmarks", "verification", "peers", ".github")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    kinds = (".py", ".md", ".yml", ".json", ".toml")
    texts = {path: path.read_text(encoding="utf-8") for path in files if path.suffix in kinds}
    assert len(texts) > 500
    mark = re.compile(r"^(?:<{7} |>{7} )", re.MULTILINE)
    assert not [str(path) for path, text in texts.items() if mark.search(text)]
    assert mark.search("a\n<<<<<<< HEAD\n")
