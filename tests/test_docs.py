"""The documentation: what its pages say is true of the code, and the site can be built."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SPHINX = ROOT / ".venv-docs" / "bin" / "python"


@pytest.mark.skipif(not SPHINX.exists(), reason="Sphinx is not installed: make docs")
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(
    tmp_path: Path,
) -> None:
    command = [SPHINX, "-m", "sphinx", "-q", "-W", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", tmp_path / "trees", DOCS, tmp_path / "site"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    loads = re.compile(r"""(?:<(?:script|img|iframe|object)\b|<link\b)[^>]*(?:https?:)?//[^>]*>""")
    for page in (tmp_path / "site").rglob("*.html"):
        assert loads.findall(page.read_text()) == []
    for style in (tmp_path / "site").rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)[\s\"']*(?:https?:)?//", style.read_text())


def glossary() -> list[str]:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|.*\|$", (DOCS / "glossary.md").read_text(), re.M)
    return [term for term, meaning in rows if meaning.endswith(".")]


def replaced() -> list[str]:
    """Return the words that pages use no more: the first column of a table of names.md."""
    words = (DOCS / "names.md").read_text().partition("## Words")[2].partition("\n## ")[0]
    return re.findall(r"^\| ([a-z ]+) \| [^|]+ \|$", words, re.M)[1:]


def test_every_word_of_the_glossary_is_used_and_has_one_row() -> None:
    terms = glossary()
    assert len(terms) > 70
    assert len(set(terms)) == len(terms)
    paths = [p for where in ("native", "pycoll") for p in (ROOT / where).rglob("*.*")]
    paths += [p for p in DOCS.rglob("*.md") if p.name != "glossary.md"]
    texts = [p.read_text() for p in paths if p.suffix in (".c", ".h", ".cu", ".md", ".py")]
    text = "\n".join(texts).lower()
    for term in terms:
        assert re.search(r"[\s_-]+".join(term.lower().split()), text), f"nothing has {term!r}"


@pytest.mark.parametrize("word", replaced())
def test_no_page_has_a_word_that_was_replaced(word: str) -> None:
    found = re.compile(rf"\b(?<!control ){word}s?\b", re.I)
    for page in (*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        if page.name not in ("names.md", "CHANGELOG.md"):
            assert not found.search(page.read_text()), f"{page.name} has {word!r}"


def test_the_files_that_the_design_names_are_there() -> None:
    ours = (DOCS / "design.md").read_text().partition("## What we take from others")[0]
    found = [p for top in ("native", "pycoll", "tests", "bench") for p in (ROOT / top).rglob("*")]
    paths = [f"/{p.relative_to(ROOT)}{'/' if p.is_dir() else ''}" for p in found]
    paths += ["/native/", "/pycoll/", "/tests/", "/bench/"]
    for name in re.findall(r"`([\w/]+\.(?:py|c|h|cu)|[\w/]+/)`", ours):
        assert any(path.endswith(f"/{name}") for path in paths), f"no {name}"


@pytest.mark.parametrize("source", sorted((DOCS / "pictures").glob("*.dot")), ids=lambda p: p.stem)
def test_a_picture_is_drawn_from_its_source_and_shown(source: Path) -> None:
    picture = source.with_suffix(".svg").read_text()
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert picture.endswith(f"<!-- {digest} -->\n"), "make pictures draws it"
    pages = [page.read_text() for page in DOCS.glob("*.md")]
    assert any(f"](pictures/{source.stem}.svg)" in page for page in pages)


def test_the_layout_names_every_folder() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where things are")[2]
    section = text.partition("\n## ")[0]
    named = set(re.findall(r"`(\w+/)`", section))
    found = [*(ROOT / "pycoll").iterdir(), *(ROOT / "pycoll" / "runtime").iterdir()]
    assert {f"{p.name}/" for p in found if (p / "__init__.py").exists()} <= named
