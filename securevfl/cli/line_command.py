"""The command `line`: measure the network between the parties."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from securevfl.cli import option_groups, signals
from securevfl.cli import party_options as options

if TYPE_CHECKING:
    pass


def line(
    party: options.Name,
    peers: options.PeersFile = Path("peers.toml"),
    meeting: option_groups.SessionOptions = option_groups.SessionOptions(),
) -> None:
    """Measure round trip, bandwidth and cost a message between all parties, and print what to simulate with.

    Every party runs this at the same time, for some seconds a pair of parties. Nobody needs a table.
    """
    from securevfl.cli.show import console, table
    from securevfl.display.progress import progress
    from securevfl.organisations.line_measurement import measure_lines, slowest

    with signals.exit_on_signal(), meeting.events(party, peers), progress("measuring") as on_turn:
        lines = measure_lines(party, meeting.venue(peers), on_turn=on_turn)

    worst, out = slowest(lines), console()
    rows = [(f"{x.one} - {x.other}", x.network.mbps, x.network.rtt_ms, x.network.message_ms) for x in lines]
    out.print(table(["line", "bandwidth\nMbps", "round trip\nms", "a message\nms"], rows))
    measured = (worst.mbps, worst.rtt_ms, worst.message_ms)
    figures = [f"{figure:.0f}" if figure >= 100 else f"{figure:.3g}" for figure in measured]
    out.print("\nTo simulate with, in Python and with securevfl train:", soft_wrap=True)
    out.print("    vfl.Network(mbps={}, rtt_ms={}, message_ms={})".format(*figures), soft_wrap=True)
    out.print("    --mbps {} --rtt-ms {} --message-ms {}".format(*figures), soft_wrap=True)
