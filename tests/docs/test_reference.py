"""Generated pages: the reference of job.toml omits no key, and no generated page is committed."""

import re
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


@pytest.mark.long
def test_generated_pages_are_complete_and_not_committed(tmp_path: Path) -> None:
    """Each page that mkdocs generates can be generated here, is in the menu, and is in no commit."""
    made_pages.write(tmp_path)
    menu, ignored = ((ROOT / name).read_text(encoding="utf-8") for name in ("mkdocs.yml", ".gitignore"))
    for name in made_pages.MADE:
        assert (tmp_path / f"{name}.md").read_text(encoding="utf-8").startswith("# ")
        assert f": {name}.md\n" in menu
        assert f"/docs/{name}.md\n" in ignored
    for stored in (ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"):
        links = re.findall(r"\]\(docs/([\w-]+)\.md", stored.read_text(encoding="utf-8"))
        assert not set(links) & set(made_pages.MADE), stored.name


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


def test_the_picture_of_modes_is_current(benchmarks: None) -> None:
    import mode_picture

    displayed = ROOT / "docs" / "figures" / "which-mode.svg"
    assert displayed.read_text(encoding="utf-8") == mode_picture.picture(), "python benchmarks/mode_picture.py"
