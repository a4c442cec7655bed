"""The experiments of the papers that this library follows, each with one command.

    python -m benchmarks.papers fedbcd --data ../shared/data
    python -m benchmarks.papers fedbcd --quick

    fedbcd   FedBCD, Liu et al. 2019: rounds to an AUC by local steps, parties and rules; convolutional parties on MNIST
    celu     CELU-VFL, Fu et al. 2022: cached exchanges against plain training, pipelines and FedBCD
    fdml     FDML, Hu et al. 2019: AUC against pooled and local models, staleness, random delays
    fdskl    FDSKL, Gu et al. 2020: test errors of kernel models
    ftl      Secure FTL, Liu et al. 2018, and FedBCD's Credit-FTL: rounds, seconds and bytes of transfer learning

A command writes `results/<paper>.json` and generates docs/results.md and its pictures again. An interrupted command
resumes: each part is written when it is done, and for FDSKL's test errors each split. `--quick` runs small versions on
generated tables, needs no data, and does not change the page. It shows only that the programs run.

Every step size is chosen on training rows of a split, and never on the rows whose metrics the same split reports
(`study`). One step size is used for several splits, so a row that one split reports may have been used by another split
to choose the step size.
"""
