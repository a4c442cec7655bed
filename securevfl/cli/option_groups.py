"""Groups of options that several commands take: a command names the group, and its fields become options.

    def line(party: Name, peers: PeersFile = Path("peers.toml"), meeting: MeetingOptions = MeetingOptions()) -> None:

has --certs, --listen and so on, with the defaults of the group that stands in its signature.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, get_type_hints

from securevfl.cli.party_options import Certs, Listen, Log, Patience, Timeout, Verbose, events

if TYPE_CHECKING:
    from securevfl.organisations.conversation import Venue


class VenueKeys(TypedDict):
    """The options of a meeting that functions of the library take by the same names."""

    certs: Path | None
    listen: str | None
    timeout: float
    patience: float


@dataclass(frozen=True)
class PlaceOptions:
    """Options by which a party finds the others and waits for them."""

    certs: Certs = None
    listen: Listen = None
    timeout: Timeout = 600.0
    patience: Patience = 60.0

    @property
    def keys(self) -> VenueKeys:
        """The options as arguments of a function of the library, without the file of peers."""
        return {"certs": self.certs, "listen": self.listen, "timeout": self.timeout, "patience": self.patience}

    def venue(self, peers: Path) -> Venue:
        """Make the venue of this file of peers."""
        from securevfl.organisations.conversation import Venue

        return Venue.of(peers, **self.keys)


@dataclass(frozen=True)
class MeetingOptions(PlaceOptions):
    """Options by which a party finds the others, and by which it says what happens."""

    verbose: Verbose = False
    log: Log = None

    def events(self) -> AbstractContextManager[None]:
        """Show events on stderr, and append them to the log if there is one."""
        return events(self.verbose, self.log)


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with an option for each field of its groups, as typer reads them from its signature."""
    own = signature(command, eval_str=True)
    groups = {name: each for name, each in own.parameters.items() if is_dataclass(each.annotation)}
    shown: list[Parameter] = []
    for name, each in own.parameters.items():
        if name not in groups:
            shown.append(each.replace(kind=Parameter.KEYWORD_ONLY))
            continue
        hints = get_type_hints(each.annotation, include_extras=True)
        for field in fields(each.annotation):
            default = getattr(each.default, field.name)
            shown.append(Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]))

    def run(**options: Any) -> None:
        for name, each in groups.items():
            kind = each.annotation
            options[name] = kind(**{field.name: options.pop(field.name) for field in fields(kind)})
        command(**options)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {each.name: each.annotation for each in shown}
    run.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined]
    return run
