"""The files at the project's root agree with each other."""

import re
import tomllib
from pathlib import Path

import yaml

import segue

ROOT = Path(__file__).parent.parent


def test_the_citation_names_this_version_and_both_papers() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == segue.__version__
    assert [(paper["authors"][0]["family-names"], paper["year"]) for paper in citation["references"]] == [
        ("Dai", 2019),
        ("Vaswani", 2017),
    ]


def test_the_hooks_run_what_make_lint_runs() -> None:
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    lint = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe[1].splitlines()]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert [hook["entry"] for hook in hooks] == lint


def test_the_workflow_runs_make_test_from_the_oldest_python_on() -> None:
    job = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]["test"]
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert f">={job['strategy']['matrix']['python'][0]}" == oldest
    assert any(step.get("run", "").startswith("make test") for step in job["steps"])
