"""The README's examples give what it says."""

import doctest
from pathlib import Path

import kvatlas


def test_readme(client: kvatlas.Client, url: str) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    test = doctest.DocTestParser().get_doctest(text.replace("http://127.0.0.1:8080", url), {}, "README.md", None, 0)
    assert len(test.examples) >= 12
    assert doctest.DocTestRunner().run(test).failed == 0
