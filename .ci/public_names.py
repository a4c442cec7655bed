"""Tell the documentation which names are public: `securevfl.__all__` is made when it is asked for, not listed."""

from __future__ import annotations

from typing import Any

import griffe

import securevfl


class PublicNames(griffe.Extension):
    """The public names of the package, given to the pages as if they stood in a list."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Set what the package exports once it is read."""
        if pkg.path == "securevfl":
            pkg.exports = list(securevfl.__all__)
