"""Read tables from databases: the command `securevfl fetch`, and --data with --query for other commands."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from securevfl.base.files import check_writable
from securevfl.cli import party_options as options
from securevfl.cli.json_output import write_results
from securevfl.data.query_rows import is_database
from securevfl.errors import ConfigError


def fetch(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="The database: postgresql://HOST/DATABASE.")],
    file: Annotated[Path, typer.Argument(metavar="FILE.parquet", help="The file to write.")],
    query: Annotated[str, typer.Option(metavar="SELECT", help="The SQL query that reads the table.")],
    json: options.Json = None,
) -> None:
    """Write the rows of a database query to a Parquet file.

    The order of your rows must stay the same from `align` until the last prediction. A database does not guarantee an
    order; a file does. Pass the password in PGPASSWORD or ~/.pgpass, and not in the address, which other users of this
    computer can see. The database session is read-only.

    Example: securevfl fetch postgresql://db.bank.example/loans bank.parquet --query "select * from loans"
    """
    from securevfl.data.query_rows import store_query

    if not is_database(address):
        raise _usage("the address is not one of a PostgreSQL database", "write it as postgresql://HOST/DATABASE")
    if file.suffix != ".parquet":
        raise _usage(f"{file} does not end with .parquet", "rename it, because the file's format is Parquet")
    check_writable(file, json)
    rows = store_query(address, query, file)
    write_results(json, "fetch", lambda: {"file": str(file), "rows": rows})
    typer.echo(f"{file}: {rows:,} rows")


@cache
def with_stored_queries(data: tuple[str, ...], queries: tuple[str, ...]) -> tuple[str, ...]:
    """Read the tables that are in databases into temporary Parquet files; equal arguments are read only once.

    Args:
        data: the arguments of --data, NAME=FILE or NAME=ADDRESS.
        queries: the arguments of --query, NAME=SELECT, or a query alone if one table is in a database.

    Returns:
        The arguments of --data, with a Parquet file in place of each database. The files are deleted when the process
        ends.

    Raises:
        ConfigError: if a database has no query, or a query has no database.
    """
    from securevfl.data.query_rows import store_query

    items = [item.partition("=") for item in data]
    addresses = {name: address for name, _, address in items if is_database(address)}
    if not addresses:
        if queries:
            raise _usage("--query is given, and no table is in a database", "leave it out")
        return data
    selects: dict[str, str] = {}
    for query in queries:
        name, equals, select = query.partition("=")
        if not (equals and name in addresses):
            if len(addresses) > 1:
                raise _usage(
                    "--query does not state to which table it belongs",
                    f'write --query "NAME=SELECT ...", where NAME is {" or ".join(addresses)}',
                )
            name, select = next(iter(addresses)), query
        if name in selects:
            raise _usage(f"--query names two queries for {name}", "leave one out")
        selects[name] = select
    if missing := [name for name in addresses if name not in selects]:
        raise _usage(
            f"the table of {missing[0]} is in a database, and no query reads it",
            f'add --query "{missing[0]}=SELECT ..."',
        )
    folder = Path(_folder().name)
    files = {name: folder / f"{re.sub('[^A-Za-z0-9]', '_', name)}-{k}.parquet" for k, name in enumerate(addresses)}
    for name, address in addresses.items():
        store_query(address, selects[name], files[name])
    return tuple(f"{name}={files.get(name, path)}" for name, _, path in items)


@cache
def _folder() -> TemporaryDirectory[str]:
    """Return a temporary folder that other users cannot read. It is deleted when the process ends."""
    return TemporaryDirectory(prefix="securevfl-")


def _usage(problem: str, remedy: str) -> ConfigError:
    return ConfigError(problem, remedy, code="SVFL-COMMAND-USAGE")
