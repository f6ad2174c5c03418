"""The command `coterie predict`."""

import csv
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.common import home
from coterie.errors import UserError


def predict(
    state: Annotated[Path, typer.Option(callback=home, metavar="DIR", help="Folder of the site's state, or of a run.")],
    data: Annotated[
        Path, typer.Option(callback=home, metavar="FILE", help="Inputs: a CSV or Parquet file, or an npz file with x.")
    ],
    client: Annotated[str | None, typer.Option(help="Name of the client, if DIR is a run.")] = None,
    label: Annotated[str, typer.Option(help="Column of a table that is no feature, if it is there.")] = "y",
    features: Annotated[
        list[str] | None, typer.Option("--feature", help="Feature column of a table. Repeatable (default: all others).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(callback=home, metavar="FILE", help="CSV file to write (default: stdout).")
    ] = None,
) -> None:
    """Predict with the model of a site, or of a client of a run. It needs no network and no other data."""
    from coterie.data.own.inputs import read_inputs
    from coterie.run import load

    rows = read_inputs(data, features, [label])
    columns, answers = _answers(load(state), client, rows)
    with nullcontext(sys.stdout) if out is None else out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(answers)


def _answers(run: Any, client: str | None, rows: Any) -> tuple[list[str], list[list[Any]]]:
    import torch

    model = run.model(client).eval()
    like = next(model.parameters())
    x = torch.tensor(rows)
    x = x.to(like.dtype) if x.is_floating_point() or not run.takes_tokens else x.long()
    if tuple(x.shape[1:]) != run.input_shape:
        raise UserError(f"the inputs have shape {tuple(x.shape[1:])}, and the model takes {run.input_shape}")
    try:
        with torch.no_grad():
            outputs = model(x)
    except IndexError:  # of an embedding
        raise UserError(
            f"the inputs have tokens from {x.min()} to {x.max()}, and the model does not know all of them"
        ) from None
    if not model.classes:
        return ["prediction"], [[value] for value in outputs.flatten().tolist()]
    used = [place for place, label in enumerate(model.classes) if label is not None]
    shares = outputs[:, used].softmax(1).max(1)
    labels = [model.classes[used[place]] for place in shares.indices.tolist()]
    return ["prediction", "probability"], [list(pair) for pair in zip(labels, shares.values.tolist(), strict=True)]
