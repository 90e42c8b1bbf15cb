"""Every error of the code base is shown here: its type, its text, and that no site is forgotten.

The cases stand in `tests/errors/`, by package. A new `raise` without a case fails
`test_every_site_has_a_case`, which says where it is.
"""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import tests.errors
from tests.errors.table import Case, Outcome, matches, said, sites, tightz_errors

FILES = [name for _, name, _ in pkgutil.iter_modules(tests.errors.__path__) if name != "table"]
CASES = {
    f"{file}-{number}": case
    for file in FILES
    for number, case in enumerate(importlib.import_module(f"tests.errors.{file}").CASES)
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Runs each case once per process."""
    known: dict[str, Outcome] = {}

    def outcome(name: str) -> Outcome:
        if name not in known:
            known[name] = said(CASES[name], tmp_path_factory.mktemp("case"))
        return known[name]

    return outcome


@pytest.mark.parametrize("name", CASES)
def test_the_text(name, outcomes):
    outcome, case = outcomes(name), CASES[name]
    assert type(outcome.error) is case.kind
    assert matches(case.text, outcome.text), outcome.text
    assert outcome.sites, "the error does not come from a site in src"


@pytest.mark.parametrize("package", sorted({site.package for site in sites()}))
def test_every_site_has_a_case(package, outcomes):
    covered = {site for name in CASES for site in outcomes(name).sites}
    missing = [
        f"{site}  {site.statement}" for site in sorted(sites() - covered) if site.package == package
    ]
    assert not missing, "no case in tests/errors shows the text of\n" + "\n".join(missing)


def test_every_type_of_error_is_raised_somewhere():
    assert {case.kind for case in CASES.values()} >= set(tightz_errors())


def test_every_message_is_one_line_and_names_no_object_by_its_address():
    for name, case in CASES.items():
        assert "\n" not in case.text, name
        assert " object at 0x" not in case.text, name


@pytest.mark.parametrize(
    ("expected", "text", "same"),
    [
        ("m is 3", "m is 3", True),
        ("m is 3", "m is 30", False),
        ("m is ...; expected 1", "m is 3; expected 1", True),
        ("m is ...; expected 1", "m is ; expected 1", False),
        ("a.c", "abc", False),
    ],
)
def test_patterns(expected, text, same):
    assert matches(expected, text) is same


def test_sites_are_found_and_a_case_covers_only_what_spoke(tmp_path):
    source = tmp_path / "package"
    source.mkdir()
    (source / "a.py").write_text(
        "def require_even(k):\n"
        "    if k % 2:\n"
        "        raise ValueError(\n"
        "            'odd'\n"
        "        )\n"
        "def stop() -> NoReturn:\n"
        "    raise error\n"
        "def f(k):\n"
        "    require_even(k)\n"
        "    helper.stop()\n"
        "    raise\n"
    )
    assert sorted((site.first, site.last) for site in sites(source)) == [(3, 5), (9, 9), (10, 10)]
    silent = said(Case(ZeroDivisionError, "", lambda: 1 / 0), tmp_path)
    assert not silent.sites
