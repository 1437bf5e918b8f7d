"""`nearexact fit`, `update`, `predict`, `certify` and `show`: models from files, for people and for scripts.

Progress goes to standard error, results to standard output, with `--json` as one JSON object and nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from nearexact.certificate import Certificate
    from nearexact.tables import Spelling

EXTRA = "data"  # the optional dependencies that these commands need
FAILED, INTERRUPTED = 2, 130
# Options of `fit` that a cluster does not have: they need all rows in one place, or a file that must be understood.
IN_ONE_PLACE = (
    "report", "noise_column", "weight_column", "dates", "missing", "test_fraction", "refit", "max_categories",
    "encoding", "delimiter", "decimal", "header",
)  # fmt: skip
Command = Callable[[argparse.Namespace], int]


def register(commands: Any) -> None:
    """Add the commands to the parser of `nearexact`."""
    _add_fit(commands.add_parser("fit", help="fit a model to a CSV or Parquet file"))
    _add_update(commands.add_parser("update", help="add the rows of a file to a model, at its hyperparameters"))
    _add_predict(commands.add_parser("predict", help="predict the rows of a file"))
    _add_certify(commands.add_parser("certify", help="bound a model's distance from the exact Gaussian process"))
    _add_show(commands.add_parser("show", help="what is in a model file"))


def _add_fit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", help="a CSV file, gzipped or not, or a Parquet file; with --dask a folder of these")
    parser.add_argument(
        "--target", required=True, help='the column to predict, or several as in "a,b"; all others are inputs'
    )
    parser.add_argument("-o", "--output", required=True, help="the model file to write, such as model.nx")
    parser.add_argument("--report", help="an HTML page about the fit to write, such as fit.html")
    parser.add_argument("--time-limit", default="10m", help='for choosing and training, such as "5m"; default 10m')
    parser.add_argument(
        "--memory-limit", help='for training besides the data, such as "4GB"; default: half of what is free'
    )
    parser.add_argument(
        "--kernel", default="auto", help='auto (default), se, matern12, matern52, "se+linear", "se*periodic", …'
    )
    parser.add_argument("--test-fraction", type=float, default=0.15, help="of the rows, kept back; 0 for none")
    parser.add_argument(
        "--refit",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="after the test, train on all rows; on unless --no-refit",
    )
    parser.add_argument("--missing", choices=("error", "drop", "median"), default="error", help="for missing cells")
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="COLUMN", help="leave a column out; repeatable"
    )
    parser.add_argument(
        "--noise-column", metavar="COLUMN", help="with the variance of each row's known noise, besides what is learnt"
    )
    parser.add_argument(
        "--weight-column", metavar="COLUMN", help="with a weight for each row, which divides its learnt noise"
    )
    parser.add_argument("--max-categories", type=int, default=20, help="different values of a text column; default 20")
    parser.add_argument("--dates", choices=("day-first", "month-first"), help="how to read dates such as 01/02/2020")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the split, of the search for hyperparameters and of ties; default 0"
    )
    parser.add_argument(
        "--dask",
        metavar="ADDRESS|local[:N]",
        help="fit a folder of Parquet files, all columns numbers, on a Dask cluster or on N processes here",
    )
    parser.add_argument(
        "--resume", metavar="FILE", help="with --dask: keep the state of the fit there, and go on from it"
    )
    _add_spelling(parser)
    parser.set_defaults(in_one_place={name: parser.get_default(name) for name in IN_ONE_PLACE})
    _finish(parser, _fit)


def _add_update(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a file that `nearexact fit` wrote")
    parser.add_argument("data", help="the rows to add, with the columns of the fit; columns are matched by name")
    parser.add_argument("-o", "--output", required=True, help="the model file to write, such as updated.nx")
    _add_spelling(parser)
    _finish(parser, _update)


def _add_predict(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a file that `nearexact fit` wrote")
    parser.add_argument("data", help="the rows to predict; columns are matched by name")
    parser.add_argument("-o", "--output", required=True, help="a .csv, .csv.gz or .parquet file to write")
    parser.add_argument("--level", type=float, default=0.95, help="probability between lower and upper; default 0.95")
    parser.add_argument(
        "--missing", choices=("error", "drop", "median"), help="instead of what the model was fitted with"
    )
    parser.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="COLUMNS",
        help="columns of the data to copy before the predictions, with commas between names, or all; repeatable",
    )
    parser.add_argument(
        "--certify",
        action="store_true",
        help="add mean_error, std_lower and std_upper: proved bounds on what the exact Gaussian process would predict",
    )
    parser.add_argument(
        "--training-data", metavar="FILE", help="the file that the model was fitted to; --certify of a sparse model"
    )
    parser.add_argument("--time-limit", help='for --certify, such as "5m"; default: none')
    _add_spelling(parser)
    _finish(parser, _predict)


def _add_certify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a file that `nearexact fit` wrote")
    parser.add_argument("data", help="the file that the model was fitted to")
    parser.add_argument("--cg-iterations", type=int, help="of conjugate gradients, to tighten the bounds")
    parser.add_argument("--time-limit", help='such as "5m"; default: none')
    _add_spelling(parser)
    _finish(parser, _certify)


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a model file")
    _finish(parser, _show)


def _add_spelling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how a CSV file is written, where that cannot be recognised from the file")
    group.add_argument("--encoding", help="such as latin-1")
    group.add_argument("--delimiter", help='such as ";"; \\t for a tab')
    group.add_argument("--decimal", choices=(".", ","), help="decimal mark")
    group.add_argument("--header", choices=("yes", "no"), help="whether the first row holds names")


def _finish(parser: argparse.ArgumentParser, command: Command) -> None:
    parser.add_argument("--json", action="store_true", help="the result as one JSON object on standard output")
    parser.add_argument("--quiet", action="store_true", help="nothing but errors, and what --json asks for")
    parser.set_defaults(command=lambda options: _guarded(command, options), extra=EXTRA)


def _guarded(command: Command, options: argparse.Namespace) -> int:
    """Run a command; every error that a user can cause becomes one line."""
    from nearexact.limits import is_out_of_memory

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the summary has those that matter as notes
            return command(options)
    except KeyboardInterrupt:
        print("nearexact: stopped; nothing was written", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # which is no mistake
        raise
    except Exception as error:
        if is_out_of_memory(error):
            advice = "; --memory-limit can be lowered" if hasattr(options, "memory_limit") else ""
            raise ValueError(f"there is not enough memory{advice}") from error
        if not _is_foreseen(error):
            raise
        message = ": ".join([str(error), *getattr(error, "__notes__", [])])  # notes say what can be done
        raise ValueError(" ".join(message.split())) from error


def _is_foreseen(error: Exception) -> bool:
    """Whether files or options of a user can lead to this error."""
    safety = sys.modules.get("nearexact.gp.safety")  # where nobody has imported it, nobody raises its exception
    return isinstance(error, (ValueError, OSError)) or (safety is not None and isinstance(error, safety.NumericalError))


def _fit(options: argparse.Namespace) -> int:
    from nearexact import tables
    from nearexact.files import check_apart, check_output

    output = check_output(options.output)
    report = None if options.report is None else check_output(options.report)
    outputs = {"the model": output} if report is None else {"the model": output, "the report": report}
    check_apart(outputs, {"the data": options.data})
    if options.dask is not None:
        return _fit_folder(options, output)
    if options.resume is not None:
        raise ValueError("--resume is for --dask")
    if report is not None:
        tables.check_one_target(options.data, options.target, _spelling(options))
    say = _printer(options)
    with redirect_stdout(sys.stderr):  # standard output is for the result alone
        fitted = tables.fit(
            options.data,
            options.target,
            kernel=options.kernel,
            time_limit=options.time_limit,
            memory_limit=options.memory_limit,
            test_fraction=options.test_fraction,
            refit=options.refit,
            missing=options.missing,
            ignore=options.ignore,
            noise_column=options.noise_column,
            weight_column=options.weight_column,
            max_categories=options.max_categories,
            day_first=None if options.dates is None else options.dates == "day-first",
            seed=options.seed,
            spelling=_spelling(options),
            progress=not options.quiet,
            on_event=say,
        )
    fitted.save(output)
    if fitted.interrupted:
        from nearexact.tables.wording import method_words

        way = method_words(fitted.summary.to_json())
        print(f"nearexact: stopped; the best model so far, {way}, is in {output}", file=sys.stderr)
        return INTERRUPTED
    status = 0
    if report is not None:
        try:
            fitted.write_page(report)
        except KeyboardInterrupt:
            print(f"nearexact: stopped before the page; the model is in {output}", file=sys.stderr)
            return INTERRUPTED
        except OSError as error:  # such as a full disk, which is no reason to keep the result back
            print(f"nearexact: the page {report} was not written: {error}; the model is in {output}", file=sys.stderr)
            report, status = None, FAILED
    from nearexact.tables.terminal import summary_lines

    result = {**fitted.summary.to_json(), "model": str(output), "report": None if report is None else str(report)}
    files = [f"{'written':<18}{' and '.join(str(path) for path in (output, report) if path)}"]
    _result(options, result, [*summary_lines(result), *files])
    return status


def _fit_folder(options: argparse.Namespace, output: Path) -> int:
    """Fit on a cluster; what needs all rows in one place is not to be had there."""
    from nearexact.tables.folders import fit_folder

    options.extra = "data,dask"
    for name, default in options.in_one_place.items():
        if getattr(options, name) != default:
            written = "no-refit" if name == "refit" else name.replace("_", "-")
            raise ValueError(f"--{written} cannot be combined with --dask")
    with redirect_stdout(sys.stderr):
        model = fit_folder(
            options.data,
            options.target,
            dask=options.dask,
            kernel=options.kernel,
            time_limit=options.time_limit,
            memory_limit=options.memory_limit,
            ignore=options.ignore,
            seed=options.seed,
            progress=not options.quiet,
            resume=options.resume,
        )
    model.save(output)
    from nearexact.model_header import read_header
    from nearexact.tables.terminal import model_facts, model_lines

    header = read_header(output)
    _result(options, {**model_facts(header), "model": str(output)}, [*model_lines(header), f"{'written':<18}{output}"])
    return 0


def _update(options: argparse.Namespace) -> int:
    from nearexact import tables
    from nearexact.files import check_apart, check_output
    from nearexact.tables.terminal import certificate_line
    from nearexact.tables.wording import verdict_words

    output = check_output(options.output)
    check_apart({"the output": output}, {"the model": options.model, "the data": options.data})
    with redirect_stdout(sys.stderr), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)  # that hyperparameters should be learnt anew
        updated = tables.update(options.model, options.data, spelling=_spelling(options))
    updated.save(output)
    notes = [*updated.notes, *(str(warning.message) for warning in caught if warning.category is UserWarning)]
    facts = _certified(updated.model.certificate_)
    lines = [
        f"{updated.rows} rows added, {facts['n']} in all",
        certificate_line(facts),
        verdict_words(facts),
        *(f"{'note':<18}{note}" for note in notes),
        f"{'written':<18}{output}",
    ]
    _result(options, {"added": updated.rows, **facts, "notes": notes, "model": str(output)}, lines)
    return 0


def _predict(options: argparse.Namespace) -> int:
    from nearexact import tables

    with _counter(options) as on_rows:
        predicted = tables.predict(
            options.model,
            options.data,
            options.output,
            level=options.level,
            missing=options.missing,
            keep=options.keep,
            certify=options.certify,
            training_data=options.training_data,
            time_limit=options.time_limit,
            spelling=_spelling(options),
            on_rows=on_rows,
        )
    empty = f", {predicted.empty} of them empty because of missing values" if predicted.empty else ""
    result = {"rows": predicted.rows, "empty": predicted.empty, "output": options.output}
    _result(options, result, [f"{predicted.rows} rows{empty}: {options.output}"])
    return 0


def _certify(options: argparse.Namespace) -> int:
    from nearexact import tables
    from nearexact.tables.terminal import certificate_line
    from nearexact.tables.wording import verdict_words

    with redirect_stdout(sys.stderr):
        certificate = tables.certify(
            options.model,
            options.data,
            cg_iterations=options.cg_iterations,
            time_limit=options.time_limit,
            spelling=_spelling(options),
            progress=not options.quiet,
        )
    result = _certified(certificate)
    lines = [
        certificate_line(result),
        verdict_words(result),
        f"hyperparameters: {certificate.about_theta}",
        *([f"divergence from the exact posterior: {certificate.divergence}"] if certificate.divergence else []),
    ]
    _result(options, result, lines)
    return 0


def _certified(certificate: Certificate) -> dict[str, Any]:
    """What a certificate says, as JSON-serialisable values."""
    names = ("verdict", "doubt", "about_theta", "lower", "upper", "gap_per_point", "kl_bound", "n")
    return {name: getattr(certificate, name) for name in names}


def _show(options: argparse.Namespace) -> int:
    from nearexact.model_header import explained, read_header
    from nearexact.tables.terminal import model_facts, model_lines

    with explained(options.model):
        header = read_header(options.model)
    _result(options, model_facts(header), model_lines(header))
    return 0


def _result(options: argparse.Namespace, result: dict[str, Any], lines: list[str]) -> None:
    if options.json:
        from nearexact.tables.summary import plain

        print(json.dumps(plain(result), allow_nan=False))
    elif not options.quiet:
        print("\n".join(lines))


def _printer(options: argparse.Namespace) -> Callable[[str], None]:
    if options.quiet:
        return lambda message: None
    from nearexact.progress import Outlet

    return lambda message: print(message, file=Outlet(sys.stderr), flush=True)


def _counter(options: argparse.Namespace) -> Any:
    """A context whose value is called with the number of rows done; on a terminal it shows them."""
    from nearexact.progress import row_counter

    return row_counter(enabled=not options.quiet and sys.stderr.isatty())


def _spelling(options: argparse.Namespace) -> Spelling:
    from nearexact.tables import Spelling

    return Spelling(
        encoding=options.encoding,
        delimiter="\t" if options.delimiter == "\\t" else options.delimiter,
        decimal=options.decimal,
        header=None if options.header is None else options.header == "yes",
    )
