"""Generated pages: the committed ones are current, and the reference of job.toml omits no key."""

from importlib import import_module
from pathlib import Path

import pytest
from pydantic import Field

from docs import job_file_page as reference
from docs import made_pages
from securevfl.base.config import Config
from securevfl.errors import ConfigError
from securevfl.families.fdskl.kernel_model import Kernel
from securevfl.options import JobOptions

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="needs a checkout")


def test_generated_pages_are_current_and_in_the_menu(tmp_path: Path) -> None:
    """The committed pages are those that the current code generates."""
    made_pages.write(tmp_path)
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for name in made_pages.MADE:
        text = (tmp_path / f"{name}.md").read_text(encoding="utf-8")
        assert text.startswith("# ")
        assert f": {name}.md\n" in menu
        stored = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        assert stored == text, f"docs/{name}.md is not current: python -m docs.made_pages"


@pytest.mark.long
def test_every_kind_and_every_key_is_on_it() -> None:
    page = reference.page()
    for name, registry in reference.KINDS.values():
        for item, kind in registry.items():
            section = page.partition(f"### {name} {item}\n")[2].partition("\n## ")[0].partition("\n### ")[0]
            assert all(f"| `{field.alias or key}` |" in section for key, field in kind.model_fields.items())
    assert all(f"| `{key}` |" in page for key in JobOptions.model_fields)


def test_types_bounds_and_defaults_are_the_checked_ones() -> None:
    page = reference.page()
    assert "| `gamma` | number > 0 ≤ 1e+12 | required |" in page
    assert "| `bits` | `16` or `32` | `32` |" in page
    assert "| `accepts` | list of text |" in page
    assert '| `rule` | [rule](#rule) | `"sgd"` |' in page


def test_meanings_are_inherited_and_may_be_replaced() -> None:
    assert set(reference.meanings(Kernel)) == set(Kernel.model_fields)


def test_a_key_without_a_meaning_is_named() -> None:
    class Mute(Config):
        disclosed: int = 1
        """Told."""
        silent: float = Field(default=1.0, gt=0)

    with pytest.raises(ConfigError, match=r"Mute\.silent"):
        reference._keys(Mute)


@pytest.mark.parametrize(
    ("module", "figure"), [("mode_picture", "which-mode.svg"), ("learning_picture", "who-learns-what.svg")]
)
def test_drawings_are_current(benchmarks: None, module: str, figure: str) -> None:
    displayed = (ROOT / "docs" / "figures" / figure).read_text(encoding="utf-8")
    assert displayed == import_module(module).picture(), f"python benchmarks/{module}.py docs/figures/{figure}"
