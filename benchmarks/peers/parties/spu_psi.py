"""Private set intersection of SPU: a CSV file in, the common rows in one order out, the result to both."""

from __future__ import annotations

from spu import libspu, psi
from told import Work, address, task


def main() -> None:
    given = task()
    rank, settings = given["rank"], given["settings"]
    ends = libspu.link.Desc()
    for k, name in enumerate(("bank", "shop")):
        ends.add_party(name, address(given["own"][0] if k == rank else given["other"][0]))
    own = ("bank", "shop")[rank]
    config = psi.PsiProtocolConfig(
        protocol=psi.parse_protocol(settings["protocol"]), receiver_rank=0, broadcast_result=True
    )
    with Work() as work:
        line = libspu.link.create_brpc(ends, rank)
        report = psi.psi_execute(
            psi.PsiExecuteConfig(
                protocol_conf=config,
                input_params=psi.InputParams(
                    path=f"{given['tables']}/{own}.csv", selected_keys=["id"], keys_unique=True
                ),
                output_params=psi.OutputParams(path=f"{given['out']}.csv"),
            ),
            line,
        )
    work.tell(given, common=report.intersection_count)


if __name__ == "__main__":
    main()
