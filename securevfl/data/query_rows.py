"""Tables from PostgreSQL: the rows of one query, read by ADBC as Arrow record batches (extra `sql`).

`read_sql` returns the rows as an Arrow table, and `store_query` writes them to a Parquet file in batches, so that they
need not fit into memory. A training reads its table several times, and every time in the same order, which a database
does not promise. So commands read the Parquet file and not the database.

The session is read only. An address may contain a password, and messages of a database may contain values of a table;
so an error states only the name of the host and the database's five-character code of the error (SQLSTATE).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from securevfl.base.extras import import_extra
from securevfl.base.files import atomic_writer
from securevfl.errors import ConfigError, DataError, SecureVFLError, TableError

SCHEMES = ("postgresql://", "postgres://")
"""How the address of a database begins."""
MAX_EXACT_INTEGER = (1 << 53) - 1  # 2^53 itself may be 2^53 + 1, rounded
"""Whole numbers up to this one are exact in float64."""
_READ_ONLY = "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"
_SQLSTATES = {
    "22012": "a division by zero",
    "22P02": "a text that cannot be converted to the type",
    "42501": "the user may not read this",
    "42601": "a syntax error",
    "42703": "a column that does not exist",
    "42P01": "a table that does not exist",
    "25006": "a query that writes, in a session that only reads",
}


def is_database(address: str) -> bool:
    """Return whether a text is the address of a database and not the name of a file."""
    return address.startswith(SCHEMES)


def file_of_table(name: str) -> Path:
    """Return the path of a table's file; raise ConfigError if the name is the address of a database.

    The message does not repeat the address, which may contain a password.
    """
    if is_database(name):
        raise ConfigError(
            "the table is the address of a database, and this command needs a file, whose rows keep their order",
            "write the rows to a file first, with securevfl fetch ADDRESS FILE.parquet --query SELECT",
            code="SVFL-COMMAND-USAGE",
        )
    return Path(name)


def read_sql(connection: Any, query: str) -> Any:
    """Return the rows of a query as a table for `Party`.

    Args:
        connection: the address of a PostgreSQL database, such as "postgresql://host/database", or an open connection
            by any driver of the Python database interface (PEP 249). With an address, libpq completes it from its
            environment variables (PGUSER, PGPASSWORD) and from ~/.pgpass.
        query: the query, in SQL.

    Returns:
        A pyarrow Table, with the columns of the query in its order.

    Raises:
        DataError: if the database cannot be reached, or refuses the query.
        TableError: if a column has a type that a table cannot have.
    """
    pa = import_module("pyarrow")
    if isinstance(connection, str):
        with _query(connection, query) as reader:
            schema = _converted(_without_rows(reader.schema)).schema
            return pa.Table.from_batches(_batches(reader, _host(connection)), schema)
    with _refusals("the database"), closing(connection.cursor()) as cursor:
        cursor.execute(query)
        if hasattr(cursor, "fetch_arrow_table"):
            table = cursor.fetch_arrow_table()
        else:
            names = [str(column[0]) for column in cursor.description or ()]
            rows = cursor.fetchall()
            columns = [[row[position] for row in rows] for position in range(len(names))]
            table = pa.Table.from_arrays([_arrow_column(*pair) for pair in zip(names, columns, strict=True)], names)
    schema = _converted(_without_rows(table.schema)).schema
    return pa.Table.from_batches([_converted(batch) for batch in table.to_batches()], schema)


def store_query(address: str, query: str, path: Path) -> int:
    """Write the rows of a query to a Parquet file, batch by batch.

    Args:
        address: the address of a PostgreSQL database, see `read_sql`.
        query: the query, in SQL.
        path: the file. It is written completely or not at all, and only its owner can read it.

    Returns:
        The number of rows.

    Raises:
        DataError: if the database cannot be reached, or refuses the query.
        TableError: if a column has a type that a table cannot have.
        StorageError: if the file cannot be written.
    """
    parquet = import_module("pyarrow.parquet")
    count = 0
    with _query(address, query) as reader, atomic_writer(path) as file:
        schema = _converted(_without_rows(reader.schema)).schema
        with parquet.ParquetWriter(file, schema) as writer:
            for batch in _batches(reader, _host(address)):
                writer.write_batch(batch)
                count += batch.num_rows
    return count


@contextmanager
def _query(address: str, query: str) -> Iterator[Any]:
    """Yield the rows of a query as a reader of record batches."""
    driver = import_extra("adbc_driver_postgresql.dbapi", "sql", "reading a table from PostgreSQL")
    with _refusals(_host(address)), driver.connect(address) as connection:
        with connection.cursor() as cursor:
            cursor.execute(_READ_ONLY)
        connection.commit()
        with connection.cursor() as cursor:
            cursor.execute(query)
            yield cursor.fetch_record_batch()


def _batches(reader: Any, place: str) -> Iterator[Any]:
    """Yield the converted batches of a reader, with errors of the database as DataError."""
    with _refusals(place):
        for batch in reader:
            yield _converted(batch)


@contextmanager
def _refusals(place: str) -> Iterator[None]:
    """Convert errors of a database or its driver to DataError, because their texts may contain values or a password."""
    try:
        yield
    except (SecureVFLError, KeyboardInterrupt):
        raise
    except Exception as cause:  # every driver has error classes of its own
        state = str(getattr(cause, "sqlstate", None) or "")
        if not state and type(cause).__name__ == "OperationalError":
            raise DataError(
                f"{place} cannot be reached, or refuses this user or password",
                "open the same address with psql, which states the reason",
                code="SVFL-DATABASE",
            ) from None
        meaning = f" ({_SQLSTATES[state]})" if state in _SQLSTATES else ""
        reason = f"with SQLSTATE {state}{meaning}" if state else "while it returned the rows"
        raise DataError(
            f"{place} ended the query with an error, {reason}",
            "run the query in psql, which states the reason, and correct it",
            code="SVFL-DATABASE",
            sqlstate=state,
        ) from None


def _host(address: str) -> str:
    """Return the host and database name of an address for messages, without user, password and options."""
    try:
        host = urlsplit(address).hostname
    except ValueError:
        host = None
    return f"the database at {host}" if host else "the database"


def _without_rows(schema: Any) -> Any:
    """Return an empty record batch of this schema."""
    pa = import_module("pyarrow")
    return pa.record_batch([pa.array([], field.type) for field in schema], schema=schema)


def _converted(batch: Any) -> Any:
    """Return a record batch whose columns have types that a table can have."""
    pa = import_module("pyarrow")
    columns = [_converted_column(field, batch.column(j)) for j, field in enumerate(batch.schema)]
    return pa.record_batch(columns, names=batch.schema.names)


def _converted_column(field: Any, values: Any) -> Any:
    """Convert one column of a batch: exact decimal numbers to float64, identifiers (UUID) to text.

    Args:
        field: its Arrow field, whose metadata contains the type in the database.
        values: its values, an Arrow array (n,).

    Returns:
        The converted array (n,).

    Raises:
        TableError: if a table cannot hold columns of this type, or a number is not exact in float64.
    """
    pa, compute = import_module("pyarrow"), import_module("pyarrow.compute")
    kind = (field.metadata or {}).get(b"POSTGRESQL:type", b"").decode()
    if kind == "numeric" and hasattr(values, "storage"):
        return _exact(field.name, values.storage.cast(pa.float64()))
    if pa.types.is_decimal(field.type):
        return _exact(field.name, values.cast(pa.float64()))
    if kind == "bpchar":  # blanks at the end of a value of char(n) have no meaning in SQL
        return compute.utf8_rtrim(values, " ")
    if kind == "uuid" and hasattr(values, "storage"):
        return pa.array([None if value is None else str(value) for value in values.to_pylist()], pa.string())
    types = pa.types
    is_column = any(
        fits(field.type)
        for fits in (
            types.is_integer,
            types.is_floating,
            types.is_boolean,
            types.is_string,
            types.is_large_string,
            types.is_date,
            types.is_timestamp,
            types.is_null,
        )
    )
    # money arrives as a number of cents, without a sign that says so
    if not is_column or kind == "money":
        raise _unusable(field.name, f"the type {kind or field.type}, which no column of a table can have")
    return values


def _exact(name: str, values: Any) -> Any:
    """Return decimal numbers as float64 (n,); raise TableError if one is so large that float64 would change it."""
    compute = import_module("pyarrow.compute")
    largest = compute.max(compute.abs(values)).as_py()
    if largest is not None and largest > MAX_EXACT_INTEGER:
        raise _unusable(name, "numbers of type numeric of 2^53 or more, which would lose digits")
    return values


def _unusable(name: str, problem: str) -> TableError:
    return TableError(
        f"column {name!r} of the query has {problem}",
        f"convert it in the query, for example {name}::text or {name}::double precision",
        code="SVFL-TABLE-TYPE",
        column=name,
    )


def _arrow_column(name: str, values: list[Any]) -> Any:
    """Return the values (n,) of a column, as a database driver returns them, as an Arrow array."""
    pa = import_module("pyarrow")
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise _unusable(name, "values of several types, or of a type that no column of a table can have") from None
