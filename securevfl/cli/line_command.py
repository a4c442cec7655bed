"""The command `line`: measure the network between the parties."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from securevfl.base.files import check_writable
from securevfl.cli import option_groups, signals
from securevfl.cli import party_options as options
from securevfl.cli.json_output import write_results


def line(
    party: options.Name,
    peers: options.PeersFile = Path("peers.toml"),
    json: options.Json = None,
    session: option_groups.SessionOptions = option_groups.SessionOptions(),
) -> None:
    """Measure round trip, bandwidth and time per message between all parties, and print options for simulations.

    Every party runs this at the same time; it takes some seconds for each pair of parties. No party needs a table.
    """
    from securevfl.cli.show import console, table
    from securevfl.display.progress import progress
    from securevfl.organisations.line_measurement import measure_lines, slowest

    check_writable(json)
    with signals.exit_on_signal(), session.events(party, peers), progress("measuring") as on_turn:
        lines = measure_lines(party, session.settings(peers), on_turn=on_turn)

    network, out = slowest(lines), console()
    write_results(
        json,
        "line",
        lambda: {
            "lines": [{"parties": [pair.one, pair.other], **asdict(pair.network)} for pair in lines],
            "slowest": asdict(network),
        },
    )
    rows = [
        (f"{pair.one} - {pair.other}", pair.network.mbps, pair.network.rtt_ms, pair.network.message_ms)
        for pair in lines
    ]
    out.print(table(["line", "bandwidth\nMbit/s", "round trip\nms", "per message\nms"], rows))
    measured = (network.mbps, network.rtt_ms, network.message_ms)
    figures = [f"{figure:.0f}" if figure >= 100 else f"{figure:.3g}" for figure in measured]
    out.print("\nTo simulate this network in Python and with securevfl train:", soft_wrap=True)
    out.print("    vfl.Network(mbps={}, rtt_ms={}, message_ms={})".format(*figures), soft_wrap=True)
    out.print("    --mbps {} --rtt-ms {} --message-ms {}".format(*figures), soft_wrap=True)
