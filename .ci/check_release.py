"""Checks that a release can be published: a security contact, and one version in all files.

usage: python .ci/check_release.py [FOLDER]
Prints each problem with its remedy, and exits with status 1 if there is one.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CONTACT = re.compile(r"^Contact:[ \t]*(.*)$", re.MULTILINE)
REACHABLE = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+|https://\S+")


def problems(root: Path) -> list[str]:
    """Return what prevents a release, each with its remedy."""
    security, changelog, citation, source = (
        (root / name).read_text(encoding="utf-8")
        for name in ("SECURITY.md", "CHANGELOG.md", "CITATION.cff", "securevfl/base/version.py")
    )
    version = re.findall(r'^__version__ = "(.+)"$', source, re.MULTILINE)[0]
    results = []
    contacts = CONTACT.findall(security)
    if len(contacts) != 1 or not REACHABLE.search(contacts[0]):
        results.append(
            "SECURITY.md names no security contact. Write an e-mail address or an https address after 'Contact:'."
        )
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        results.append(
            f"CHANGELOG.md has no section of version {version} with a date. Rename the section 'Unreleased'."
        )
    if f"\nversion: {version}\n" not in citation:
        results.append(f"CITATION.cff is not about version {version}. Correct its key version.")
    return results


def main() -> int:
    """Run the checks from the command line."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    results = problems(root)
    print("\n".join(results) or "ready for a release", file=sys.stderr if results else sys.stdout)
    return 1 if results else 0


if __name__ == "__main__":
    sys.exit(main())
