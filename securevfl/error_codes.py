"""The stable codes of all errors, each with its usual cause and remedy.

A code names one condition that a user handles in one way. Messages may change from release to release; codes do not,
so scripts and tests compare codes. The page of error codes in the documentation is generated from `CATALOGUE`.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class ErrorCode(NamedTuple):
    """What usually causes the errors of one code, and what a user should do about them."""

    cause: str
    remedy: str


CATALOGUE: Final[dict[str, ErrorCode]] = {
    # jobs and options
    "SVFL-JOB-OPTION": ErrorCode(
        "An option or a key of the job has a value that is not allowed.",
        "Correct the option that the message names.",
    ),
    "SVFL-JOB-COMBINATION": ErrorCode(
        "Two options of the job contradict each other, or one needs another.",
        "Change one of the options that the message names.",
    ),
    "SVFL-JOB-UNSUPPORTED": ErrorCode(
        "The chosen model, loss or protocol does not support what the job or the command asks for.",
        "Choose the alternative that the message names.",
    ),
    "SVFL-JOB-FILE": ErrorCode(
        "The job file is missing, or is not valid TOML.",
        "Check the path, and correct the line that the message names.",
    ),
    "SVFL-JOB-MISMATCH": ErrorCode(
        "Two parties started with different jobs, options or versions.",
        "Give all parties the same job file and the same version of securevfl.",
    ),
    "SVFL-JOB-TOO-LARGE": ErrorCode(
        "A size in the job exceeds a limit, so that the run would need too much time, memory or precision.",
        "Reduce the size that the message names.",
    ),
    "SVFL-JOB-MODULE": ErrorCode(
        "A party's network module cannot be loaded or cannot be used in a training.",
        "Correct the module as the message describes.",
    ),
    "SVFL-JOB-EXTENSION": ErrorCode(
        "A package that extends securevfl cannot be loaded, or conflicts with another one.",
        "Repair or uninstall the package that the message names.",
    ),
    "SVFL-PACKAGE-MISSING": ErrorCode(
        "The job or the command needs a package that a party has not installed or does not allow.",
        "Install or allow the package that the message names, or leave out the option that needs it.",
    ),
    "SVFL-JOB-KEY-SIZE": ErrorCode(
        "An encryption key or an encryption modulus offers less than 128-bit security.",
        "Use at least 3,072 bits for Paillier keys, and the default parameters for all others.",
    ),
    "SVFL-JOB-CLUSTER": ErrorCode(
        "The Dask cluster has no workers, or a worker did not answer.",
        "Check the scheduler's and the workers' logs, then start the run again.",
    ),
    "SVFL-COMMAND-USAGE": ErrorCode(
        "The command line contains contradicting arguments, or an argument is missing.",
        "Correct the arguments; `securevfl COMMAND --help` lists them.",
    ),
    "SVFL-EXTRA-MISSING": ErrorCode(
        "The feature needs a library that is not installed.",
        "Install the extra that the message names, for example `pip install 'securevfl[sklearn]'`.",
    ),
    # parties and roles
    "SVFL-PARTIES-COUNT": ErrorCode(
        "The job has too few or too many parties.",
        "Add or remove parties as the message describes.",
    ),
    "SVFL-PARTIES-NAME": ErrorCode(
        "A party's name is unknown, invalid or used twice.",
        "Correct the name; names consist of letters, digits, - and _.",
    ),
    "SVFL-PARTIES-LABELS": ErrorCode(
        "No party has labels, or several parties have them.",
        "Give labels to exactly one party.",
    ),
    "SVFL-PARTIES-ROLE": ErrorCode(
        "A party cannot take the role that the job or the command gives it.",
        "Correct the roles, or run the command that the message names.",
    ),
    # tables
    "SVFL-TABLE-UNREADABLE": ErrorCode(
        "The data file is missing, damaged or not of the format that its name states.",
        "Check the path, or export the file again.",
    ),
    "SVFL-DATABASE": ErrorCode(
        "A database cannot be reached, or it ends a query with an error.",
        "Run the query with psql at the same address, which states the reason.",
    ),
    "SVFL-TABLE-ENCODING": ErrorCode(
        "A text file is not encoded in UTF-8.",
        "Export the file again as UTF-8.",
    ),
    "SVFL-TABLE-HEADER": ErrorCode(
        "The header is missing, or column names are empty or repeated.",
        "Add a header that gives every column a different name.",
    ),
    "SVFL-TABLE-RAGGED": ErrorCode(
        "A line has more or fewer fields than the header.",
        "Correct the line that the message names; quotes that are not closed are a usual cause.",
    ),
    "SVFL-TABLE-QUOTES": ErrorCode(
        "A quotation mark in a CSV file encloses complete rows, which would disappear.",
        "Remove the quotation mark in the line that the message names, or write it twice within a quoted value.",
    ),
    "SVFL-TABLE-EMPTY": ErrorCode(
        "The table has no rows or no columns.",
        "Export the table again, and check that it contains the expected rows and columns.",
    ),
    "SVFL-TABLE-EMPTY-COLUMN": ErrorCode(
        "A column has no values.",
        "Drop the column, or list it in `prepare = { drop = [...] }`.",
    ),
    "SVFL-TABLE-CONSTANT": ErrorCode(
        "A column has the same value in every training row.",
        "Drop the column, or supply columns that vary.",
    ),
    "SVFL-TABLE-TYPE": ErrorCode(
        "A column contains values of another type than expected, for example text among numbers.",
        "Convert the values, or declare the type of the column.",
    ),
    "SVFL-TABLE-BINS": ErrorCode(
        "The declared bins of a column do not fit its rows: a bin has too few, or the job allows fewer bins.",
        "Merge bins; `securevfl bins` lists the rows of each bin.",
    ),
    "SVFL-TABLE-MISSING-VALUES": ErrorCode(
        "A column contains missing or infinite values where the job cannot use them.",
        "Fill the values, or let the job prepare the columns.",
    ),
    "SVFL-TABLE-SHAPE": ErrorCode(
        "An array has another shape or length than expected.",
        "Pass an array of the shape that the message names.",
    ),
    "SVFL-TABLE-COLUMNS": ErrorCode(
        "The columns are not those that the model or the option names.",
        "Supply the columns that the message names.",
    ),
    "SVFL-TABLE-WEIGHTS": ErrorCode(
        "A column of weights or exposures contains values that cannot be used.",
        "Correct the column, or leave it out of the job.",
    ),
    "SVFL-TABLE-TOO-FEW-ROWS": ErrorCode(
        "There are too few rows for the requested result.",
        "Supply at least the number of rows that the message names.",
    ),
    "SVFL-TABLE-ON-DISK": ErrorCode(
        "The table is read from disk, and the option needs it in memory.",
        "Prepare the columns beforehand, or pass the table in memory.",
    ),
    "SVFL-TABLE-ROW-COUNT": ErrorCode(
        "The parties' tables have different numbers of rows, or rows in a different order.",
        "Align the tables with `securevfl align`.",
    ),
    "SVFL-TABLE-CHANGED": ErrorCode(
        "A data file or its stored copy has changed since it was read.",
        "Run the command that made the copy again.",
    ),
    "SVFL-TABLE-GROUPS": ErrorCode(
        "The groups of rows are too many, too few or too small.",
        "Choose a column with the number of groups that the message names.",
    ),
    # labels
    "SVFL-LABEL-VALUES": ErrorCode(
        "The labels are not of the kind that the model's loss expects.",
        "Correct the label column, or choose another model.",
    ),
    "SVFL-LABEL-MISSING": ErrorCode(
        "Some rows have no label.",
        "Drop these rows, or fill in the labels.",
    ),
    "SVFL-LABEL-CONSTANT": ErrorCode(
        "All labels are equal.",
        "Check that the right column is named as the label.",
    ),
    "SVFL-LABEL-CLASSES": ErrorCode(
        "The labels have too few, too many or unexpected classes.",
        "Correct the labels, or choose a model for this number of classes.",
    ),
    "SVFL-LABEL-SPLIT": ErrorCode(
        "The training rows or the held-out rows lack a class.",
        "Stratify the split, or hold out other rows.",
    ),
    "SVFL-LABEL-RANGE": ErrorCode(
        "Labels lie beyond the range in which the protocol computes.",
        "Change the unit of the label, or leave out extreme rows.",
    ),
    # ids
    "SVFL-ID-MISSING": ErrorCode(
        "The table has no ids, or some rows lack one.",
        "Name the id column, and fill in missing ids.",
    ),
    "SVFL-ID-DUPLICATE": ErrorCode(
        "Several rows have the same id.",
        "Merge or drop these rows.",
    ),
    "SVFL-ID-INVALID": ErrorCode(
        "An id is of a type that cannot be compared exactly, for example a fraction.",
        "Read the id column as text or integers.",
    ),
    "SVFL-ID-NO-MATCH": ErrorCode(
        "The parties' tables have no id in common, or rows that must be the same have different ids.",
        "Check that the right id column is named, and that ids are written alike at all parties.",
    ),
    "SVFL-ID-COLUMN": ErrorCode(
        "The id column that is named does not exist or cannot be used.",
        "Correct the option `--id`.",
    ),
    "SVFL-ID-ORDER": ErrorCode(
        "Two parties have the same ids in a different order.",
        "Align the tables with `securevfl align`.",
    ),
    "SVFL-ID-UNKNOWN": ErrorCode(
        "Ids are not in the table that the command reads.",
        "Check that the file is the one that was used before.",
    ),
    # consent, limits, disclosure
    "SVFL-CONSENT-REFUSED": ErrorCode(
        "This party has not agreed to its consent sheet.",
        "Read the sheet, then run the same command again and agree, or pass `--accept DIGEST`.",
    ),
    "SVFL-CONSENT-DIGEST": ErrorCode(
        "No consent sheet with the digest that was passed exists.",
        "Pass the digest that `securevfl explain` prints for this job.",
    ),
    "SVFL-LEAK-NOT-ACCEPTED": ErrorCode(
        "The job reveals more than it has accepted by name.",
        "Accept the leak in `accepts`, or choose a protocol that does not have it.",
    ),
    "SVFL-LEAK-UNPROTECTED": ErrorCode(
        "An option of the job, intended as a protection, would protect nothing.",
        "Use the alternative that the message names.",
    ),
    "SVFL-LIMIT-REACHED": ErrorCode(
        "The run or the request would disclose more than this party's limit allows.",
        "Raise the limit with `securevfl ledger --limit`, or ask for less.",
    ),
    "SVFL-LIMIT-INVALID": ErrorCode(
        "A limit is not of a form that the ledger knows.",
        "Write the limit as KIND=NUMBER; `securevfl ledger --help` lists the kinds.",
    ),
    "SVFL-LIMIT-MISSING": ErrorCode(
        "The service needs limits that the ledger does not have.",
        "Set the limits that the message names.",
    ),
    "SVFL-DISCLOSURE-UNDECLARED": ErrorCode(
        "A message would disclose something that has not been declared and counted.",
        "Report this error: it is a fault of securevfl or of an extension.",
    ),
    # the ledger
    "SVFL-LEDGER-MISSING": ErrorCode(
        "There is no ledger at the path that is named.",
        "Name the ledger; the first run creates it.",
    ),
    "SVFL-LEDGER-FOREIGN": ErrorCode(
        "The ledger belongs to another party or another version of securevfl.",
        "Name the ledger of this party.",
    ),
    "SVFL-LEDGER-DAMAGED": ErrorCode(
        "The ledger is damaged, was changed by hand or is older than its last use.",
        "Restore the newest backup, or follow the steps that the message names.",
    ),
    "SVFL-LEDGER-BUSY": ErrorCode(
        "Another process uses the ledger.",
        "Wait until that process has finished.",
    ),
    # files
    "SVFL-FILE-UNUSABLE": ErrorCode(
        "A file cannot be read or written: it does not exist, or permission is denied.",
        "Check the path and its permissions.",
    ),
    "SVFL-FILE-NO-SPACE": ErrorCode(
        "The disk is full or a quota is exhausted.",
        "Free space, then run the same command again.",
    ),
    "SVFL-FILE-EXISTS": ErrorCode(
        "The file exists already and would be overwritten.",
        "Name another file, or ask for its replacement as the message describes.",
    ),
    "SVFL-FILE-IN-USE": ErrorCode(
        "Another process uses the file.",
        "Wait until that process has finished, or stop it.",
    ),
    "SVFL-FILE-DAMAGED": ErrorCode(
        "A file of securevfl is damaged, incomplete or of another version.",
        "Restore it from a backup, or remove it if the message says that it can be computed again.",
    ),
    "SVFL-FILE-WRONG-KIND": ErrorCode(
        "The file is not of the kind that the command expects.",
        "Name a file of the kind that the message describes.",
    ),
    "SVFL-FILE-READABLE-BY-OTHERS": ErrorCode(
        "A file or folder with secrets can be read by other users of the computer.",
        "Restrict its permissions with `chmod`.",
    ),
    # models
    "SVFL-MODEL-FILE": ErrorCode(
        "The model file is damaged, incomplete or of another version.",
        "Restore it from a backup, or train again.",
    ),
    "SVFL-MODEL-MISMATCH": ErrorCode(
        "The parties' parts of the model come from different trainings.",
        "Use the files that one training wrote at all parties.",
    ),
    "SVFL-MODEL-NO-WEIGHTS": ErrorCode(
        "This party's part of the model has no readable weights.",
        "Train a model whose weights are opened to this party, or use predictions.",
    ),
    "SVFL-MODEL-UNSUPPORTED": ErrorCode(
        "The model is not of a kind that the command supports.",
        "Train a model of the kind that the message names.",
    ),
    "SVFL-MODEL-NOT-TRAINED": ErrorCode(
        "There is no trained model yet.",
        "Train first.",
    ),
    # trainings
    "SVFL-TRAINING-DIVERGED": ErrorCode(
        "The loss is not finite or far above that of a model without weights.",
        "Reduce the learning rate, or scale the columns.",
    ),
    "SVFL-TRAINING-FINISHED": ErrorCode(
        "This party has finished the training, and the others have not.",
        "Follow the steps that the message names.",
    ),
    "SVFL-TRAINING-RANGE": ErrorCode(
        "A value is outside the range in which the protocol computes.",
        "Scale the columns, or reduce the learning rate.",
    ),
    "SVFL-CHECKPOINT": ErrorCode(
        "A checkpoint is missing, damaged or of another version.",
        "Remove it to start the training again.",
    ),
    # connections
    "SVFL-PEER-AWAY": ErrorCode(
        "A peer cannot be reached, or did not answer in time.",
        "Check that the peer is running and that the address is right, then run the same command again.",
    ),
    "SVFL-PEER-LOST": ErrorCode(
        "The connection to a peer was lost, or the peer was restarted.",
        "Run the same command again at every party.",
    ),
    "SVFL-PEER-STOPPED": ErrorCode(
        "A peer has stopped for the reason that the message names.",
        "Follow the steps that the message names.",
    ),
    "SVFL-PEER-BUSY": ErrorCode(
        "The peer serves its maximum number of sessions, or too many rows are waiting.",
        "Repeat the request after the time that the message names.",
    ),
    "SVFL-PEER-REFUSED": ErrorCode(
        "The peer refused the connection.",
        "Check both parties' certificates and peer files.",
    ),
    "SVFL-PEERS-FILE": ErrorCode(
        "The file of peers is missing, invalid or does not fit the run.",
        "Correct the file; all parties need the same one.",
    ),
    "SVFL-ADDRESS": ErrorCode(
        "An address or a port is invalid or already in use.",
        "Choose another address or port, or stop the other program.",
    ),
    "SVFL-TLS-CERTIFICATE": ErrorCode(
        "A certificate is expired, revoked, unknown or of another party.",
        "Issue the certificate again, and compare both copies of ca.pem.",
    ),
    "SVFL-TLS-KEY": ErrorCode(
        "A private key is missing or does not belong to its certificate.",
        "Use the two files that were issued together.",
    ),
    "SVFL-TLS-VERSION": ErrorCode(
        "The other side, or this process, cannot use TLS 1.3 alone.",
        "Update the software that the message names.",
    ),
    "SVFL-HTTP-REQUEST": ErrorCode(
        "An HTTP request to the gateway is invalid.",
        "Correct the request as the message describes.",
    ),
    "SVFL-HTTP-TOKEN": ErrorCode(
        "The token for HTTP clients is missing or too short.",
        "Write at least 16 ASCII characters to the token file.",
    ),
    # messages of peers
    "SVFL-PROTOCOL-MESSAGE": ErrorCode(
        "A peer sent a different message than the protocol requires at this point.",
        "Run the same job and the same version of securevfl at all parties.",
    ),
    "SVFL-PROTOCOL-SIZE": ErrorCode(
        "A message of a peer has another size or shape than agreed.",
        "Run the same job and the same version of securevfl at all parties.",
    ),
    "SVFL-PROTOCOL-VALUES": ErrorCode(
        "A message of a peer contains values that the protocol does not allow.",
        "Run the same job and version at all parties. If the error stays, ask the peer for the reason.",
    ),
    "SVFL-PROTOCOL-CHEATING": ErrorCode(
        "A consistency check failed: the peer does not follow the protocol, or a message was altered.",
        "Stop, and ask the peer for the reason.",
    ),
    "SVFL-PROTOCOL-LIMIT": ErrorCode(
        "A peer asked for more than was agreed.",
        "Ask the peer for the reason, or agree to more in the job.",
    ),
    "SVFL-PROTOCOL-REPEATED": ErrorCode(
        "A single-use value or message was used a second time.",
        "Start the run again, so that fresh values are generated.",
    ),
    "SVFL-PROTOCOL-VERSION": ErrorCode(
        "The peers use different versions of the message format.",
        "Update the older side.",
    ),
    "SVFL-FRAME": ErrorCode(
        "A frame, the unit in which messages travel, is truncated, altered, replayed, too large or of another session.",
        "Start all parties again with the same job.",
    ),
    "SVFL-STATE": ErrorCode(
        "A method was called in a state that does not allow it.",
        "Call the methods in the order that the documentation describes.",
    ),
    # cryptography
    "SVFL-CRYPTO-PARAMETERS": ErrorCode(
        "Parameters of a cryptographic scheme cannot be used.",
        "Use the parameters that the message names.",
    ),
    "SVFL-CRYPTO-KEY": ErrorCode(
        "A key is malformed, of another version or does not match the data that it is used with.",
        "Exchange public keys again.",
    ),
    "SVFL-CRYPTO-CIPHERTEXT": ErrorCode(
        "A ciphertext is malformed, cut or altered.",
        "Send it again; both sides need the same version of securevfl.",
    ),
    "SVFL-CRYPTO-OPENING": ErrorCode(
        "Decrypted values do not pass the check that accompanies them.",
        "Stop, and ask the peer for the reason.",
    ),
    "SVFL-CRYPTO-RANGE": ErrorCode(
        "A value is not finite or is outside the agreed range of fixed-point numbers.",
        "Pass values within the range that the message names.",
    ),
    "SVFL-CRYPTO-SHAPE": ErrorCode(
        "Arrays for a cryptographic operation do not have the agreed shapes.",
        "Use the same batch on both sides.",
    ),
    "SVFL-CRYPTO-REUSE": ErrorCode(
        "A single-use key, mask or stream was about to be used again.",
        "Generate a new one.",
    ),
    "SVFL-CRYPTO-LIBRARY": ErrorCode(
        "The encryption library does not behave as securevfl requires.",
        "Install the version of tenseal that securevfl requires.",
    ),
    "SVFL-INTERNAL": ErrorCode(
        "An unexpected failure occurred inside securevfl.",
        "Report the error with the log.",
    ),
}
