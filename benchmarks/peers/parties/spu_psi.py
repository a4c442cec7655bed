"""Private set intersection of SPU: a CSV file in, the common rows in one order out, the result to both parties."""

from __future__ import annotations

from spu import libspu, psi
from told import Work, address, task


def main() -> None:
    """Run this party."""
    arguments = task()
    rank, settings = arguments["rank"], arguments["settings"]
    ends = libspu.link.Desc()
    for k, name in enumerate(("bank", "shop")):
        ends.add_party(name, address(arguments["own"][0] if k == rank else arguments["other"][0]))
    local_part = ("bank", "shop")[rank]
    config = psi.PsiProtocolConfig(
        protocol=psi.parse_protocol(settings["protocol"]), receiver_rank=0, broadcast_result=True
    )
    with Work() as work:
        line = libspu.link.create_brpc(ends, rank)
        report = psi.psi_execute(
            psi.PsiExecuteConfig(
                protocol_conf=config,
                input_params=psi.InputParams(
                    path=f"{arguments['tables']}/{local_part}.csv", selected_keys=["id"], keys_unique=True
                ),
                output_params=psi.OutputParams(path=f"{arguments['out']}.csv"),
            ),
            line,
        )
    work.tell(arguments, common=report.intersection_count)


if __name__ == "__main__":
    main()
