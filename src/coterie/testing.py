"""Checks of methods of your own, for your own tests."""

import tempfile
from pathlib import Path

import numpy as np
import torch

from coterie.core.method import Method
from coterie.data.federation import Federation
from coterie.errors import UserError
from coterie.run import Run, load
from coterie.training import train

SIZES = (9, 3, 12, 1, 30)
"""Numbers of examples of the clients. Engines that compute clients together put some of them into one group."""
ROUNDS = 4
TOLERANCE = 1e-9


def check_method(method: Method) -> list[str]:
    """Check that a method keeps the contract, by training five small clients of unequal sizes in float64.

    It checks that no reply is refused and nothing is changed in place, that every engine gives the same result, that
    the same seed gives the same bits, that an interrupted run ends in the same bits, and that the models of clients can
    be used, saved and loaded. It takes a few seconds.

    Args:
        method: the method, such as `FedMine(tau=2)`. A few local steps are enough.

    Returns:
        The engines that can compute the method.

    Raises:
        AssertionError: if a check fails. It says what is wrong.
        UserError: if the method or its settings cannot be used at all.
        ClientError: if one of its functions fails. It names the function and the client.
        DivergedError: if the replies of all clients are refused. It says why.
    """
    if not isinstance(method, Method):
        raise UserError(f"check_method needs a method such as FedMine(tau=2), not {method!r}")
    expected = _trained(method, "loop")
    for record in expected.history:
        for client, why in record.refused.items():
            raise AssertionError(f"round {record.round}: the reply of {client} is refused: {why}")
    _compare("a second run with the same seed", _trained(method, "loop"), expected, 0.0)
    engines = ["loop"]
    for engine in ("vmap", "fused"):
        try:
            run = _trained(method, engine)
        except UserError as error:
            if "cannot do this" not in str(error):
                raise
            continue
        _compare(f"the engine {engine}", run, expected, TOLERANCE)
        engines.append(engine)
    _check_folder(method, expected)
    x, y = _examples(99, 8)
    expected.personalize(x, y)
    return engines


def _check_folder(method: Method, expected: Run) -> None:
    """Check that an interrupted run ends in the same bits, and that it can be loaded."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        _trained(method, "loop", out=out, rounds=ROUNDS // 2)
        _compare("a run that was interrupted", _trained(method, "loop", out=out, resume=True), expected, 0.0)
        loaded = load(out, method=method)
        _compare("a run that was loaded", loaded, expected, 0.0)
        x, _ = _examples(0, SIZES[0])
        for client in expected.ids:
            one, other = (run.model(client)(torch.from_numpy(x)) for run in (loaded, expected))
            assert torch.equal(one, other), f"the model of {client} answers differently after it was loaded"


def _trained(method: Method, engine: str, rounds: int = ROUNDS, out: Path | None = None, resume: bool = False) -> Run:
    return train(
        _federation(),
        model="mlp",
        method=method,
        settings={"model": {"hidden": [6]}},
        rounds=rounds,
        clients_per_round=None if method.everyone else 4,
        eval_every=2,
        adapt_steps=2,
        engine=engine,
        dtype="float64",
        progress=False,
        out=out,
        resume=resume,
    )


def _federation() -> Federation:
    clients = {}
    for number, size in enumerate(SIZES):
        x, y = _examples(number, size + 2)
        clients[f"client-{number}"] = (x[:-2], y[:-2], x[-2:], y[:-2][[0, -1]])
    return Federation.from_arrays(clients)


def _examples(seed: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(size, 4)), np.arange(size) % 3


def _compare(what: str, run: Run, expected: Run, tolerance: float) -> None:
    trees = [("the shared model", run.shared, expected.shared)]
    trees += [
        (f"the personal state of {client}", run.personal(client), expected.personal(client)) for client in run.ids
    ]
    for which, mine, other in trees:
        assert mine.keys() == other.keys(), f"{what} has other names in {which}: {sorted(mine.keys() ^ other.keys())}"
        for name, value in mine.items():
            apart = _distance(value, other[name])
            assert apart <= tolerance, f"{what} differs by {apart:.2g} in {name!r} of {which}"


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    if one.shape != other.shape:
        return float("inf")
    return float((one.to(torch.float64) - other.to(torch.float64)).abs().max()) if one.numel() else 0.0
