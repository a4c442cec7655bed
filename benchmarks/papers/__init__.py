"""The experiments of the papers that this library follows, each with one command.

    python -m benchmarks.papers fedbcd --data ../shared/data
    python -m benchmarks.papers fedbcd --quick

fedbcd   FedBCD, Liu et al. 2019: rounds to an AUC by local steps, parties and rules; convolutional parties on MNIST
celu     CELU-VFL, Fu et al. 2022: kept exchanges against plain training, pipelines and FedBCD
fdml     FDML, Hu et al. 2019: AUC against pooled and local models, staleness, slowness at random
fdskl    FDSKL, Gu et al. 2020: test errors of kernel models
ftl      Secure FTL, Liu et al. 2018, and FedBCD's Credit-FTL: rounds, seconds and bytes of transfer learning

A command writes `results/<paper>.json` and draws docs/results.md and its pictures anew. One that was stopped goes on
where it was: each part is written as it is done, and of FDSKL's test errors each split. `--quick` runs everything small
on tables that are made up here, needs no data, and leaves the page alone: it shows that the programs run, not what they
find.

Every step size is chosen on rows of the training part, never on those that the same split reports (`study`). One step
is taken for several splits, so a row that one split reports may have been among another split's rows of choice.
"""
