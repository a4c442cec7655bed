"""The command `line`: what lies between the parties, measured with them all."""

from __future__ import annotations

from pathlib import Path

import typer

from securevfl.cli.option_groups import MeetingOptions, expanded
from securevfl.cli.party_options import Name, PeersFile
from securevfl.cli.stop import stoppable


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(expanded(line))


def line(
    party: Name,
    peers: PeersFile = Path("peers.toml"),
    meeting: MeetingOptions = MeetingOptions(),
) -> None:
    """Measure round trip, bandwidth and cost a message between all parties, and print what to simulate with.

    Every party runs this at the same time, for some seconds a pair of parties. Nobody needs a table.
    """
    from securevfl.cli.show import console, table
    from securevfl.display.progress import progress
    from securevfl.organisations.measure import measure_lines, slowest
    from securevfl.runtime.clock import Network

    with stoppable(), meeting.events(), progress("measuring") as on_turn:
        lines = measure_lines(party, meeting.venue(peers), on_turn=on_turn)

    def measured(network: Network) -> tuple[float, float, float]:
        return network.mbps, network.rtt_ms, network.message_ms

    rows = [(f"{line.one} - {line.other}", *measured(line.network)) for line in lines]
    out = console()
    out.print(table(["line", "bandwidth\nMbps", "round trip\nms", "a message\nms"], rows))
    figures = [f"{figure:.0f}" if figure >= 100 else f"{figure:.3g}" for figure in measured(slowest(lines))]
    out.print("\nTo simulate with, in Python and with securevfl train:", soft_wrap=True)
    out.print("    vfl.Network(mbps={}, rtt_ms={}, message_ms={})".format(*figures), soft_wrap=True)
    out.print("    --mbps {} --rtt-ms {} --message-ms {}".format(*figures), soft_wrap=True)
