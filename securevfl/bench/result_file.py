"""The result file of a benchmark, with a description of the machine.

A file is {"schema", "machine", "rows": [...]}; the figures of a row are milliseconds and bytes.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

Row = dict[str, Any]

MEASURED_WITH = ("securevfl", "numpy", "gmpy2", "tenseal", "phe")


def machine() -> dict[str, Any]:
    """Return processor, cores, load, Python and the versions of the measured packages."""
    versions = {}
    for name in MEASURED_WITH:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def file_content(schema: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the content of a benchmark's file."""
    return {"schema": schema, "machine": machine(), "rows": list(rows)}
