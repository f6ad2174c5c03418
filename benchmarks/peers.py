"""One round of FedAvg in other systems, each through its own public interface.

The requirements of peers conflict with each other and with Coterie. Each peer therefore runs this file in its own
process, with the interpreter that COTERIE_PEERS_PYTHON names ("fedjax=/opt/fedjax/bin/python,flower=..."), if any. Only
NumPy is needed to load the file. The first round is a warm-up. It must give the same model as NumPy, otherwise the peer
is skipped.
"""

# mypy: disable-error-code="import-not-found, import-untyped"

import contextlib
import itertools
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from subprocess import PIPE, Popen, TimeoutExpired
from typing import Any

import numpy as np
from numpy.typing import NDArray

Weights = dict[str, NDArray[np.float32]]
"""Weights with the names and shapes of torch.nn.Sequential(Linear, ReLU, Linear)."""
Rounds = tuple[Weights, list[float]]
"""The model after the first round, which is a warm-up, and the seconds of each further round."""

LIMIT = 900  # seconds for all rounds of a peer


@dataclass(frozen=True)
class Work:
    """A round of FedAvg: every client takes SGD steps on a two-layer network, and their models are averaged."""

    clients: int
    examples: int
    features: int
    hidden: int
    classes: int
    steps: int
    batch: int
    """Number of examples per step, taken in order. 0 means all examples."""
    rate: float = 0.1
    seed: int = 0

    def data(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return random inputs (clients, examples, features) and labels (clients, examples)."""
        rng = np.random.default_rng([self.seed, 0])
        x = rng.standard_normal((self.clients, self.examples, self.features), dtype=np.float32)
        return x, rng.integers(self.classes, size=(self.clients, self.examples))

    def weights(self) -> Weights:
        """Return the model at the start of the round."""
        rng = np.random.default_rng([self.seed, 1])
        weights = {}
        for layer, width, inputs in (("0", self.hidden, self.features), ("2", self.classes, self.hidden)):
            weights[f"{layer}.weight"] = rng.normal(0, inputs**-0.5, (width, inputs)).astype(np.float32)
            weights[f"{layer}.bias"] = rng.normal(0, 0.1, width).astype(np.float32)
        return weights

    def batches(self) -> list[slice]:
        """Return the examples of each step, epoch by epoch. The last batch of an epoch can be shorter."""
        starts = range(0, self.examples, self.size)
        return [slice(starts[step % len(starts)], starts[step % len(starts)] + self.size) for step in range(self.steps)]

    @property
    def size(self) -> int:
        """Number of examples per step."""
        return self.batch or self.examples

    @property
    def tiny(self) -> bool:
        """Whether the products are so small that a second thread makes them slower."""
        return self.size * self.features * self.hidden < 1_000_000


def clock(play: Callable[[], Weights], repeats: int) -> Rounds:
    """Play a warm-up round, then time `repeats` rounds."""
    first, marks = play(), [time.perf_counter()]
    for _ in range(repeats):
        play()
        marks.append(time.perf_counter())
    return first, np.diff(marks).tolist()


def reference(work: Work) -> Weights:
    """Return the model after one round, computed with NumPy."""
    total = {name: np.zeros_like(value) for name, value in work.weights().items()}
    for x, labels in zip(*work.data(), strict=True):
        y = np.eye(work.classes, dtype=np.float32)[labels]
        model = work.weights()
        for rows in work.batches():
            hidden = np.maximum(x[rows] @ model["0.weight"].T + model["0.bias"], 0)
            logits = hidden @ model["2.weight"].T + model["2.bias"]
            exponents = np.exp(logits - logits.max(1, keepdims=True))
            slope = (exponents / exponents.sum(1, keepdims=True) - y[rows]) / len(logits)
            inner = slope @ model["2.weight"] * (hidden > 0)
            for layer, error, inputs in (("0", inner, x[rows]), ("2", slope, hidden)):
                model[f"{layer}.weight"] -= work.rate * error.T @ inputs
                model[f"{layer}.bias"] -= work.rate * error.sum(0)
        total = {name: (total[name] + value / work.clients).astype(np.float32) for name, value in model.items()}
    return total


def fedjax(work: Work, repeats: int) -> Rounds:
    """Time FedJAX (Google) with its `jit` backend."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false" if work.tiny else ""
    import fedjax
    import jax

    jax.tree_map = jax.tree_util.tree_map  # FedJAX 0.0.17 uses a name that JAX has removed

    def loss(params: Any, batch: Any, _: Any) -> Any:
        hidden = jax.nn.relu(batch["x"] @ params["0.weight"] + params["0.bias"])
        logits = hidden @ params["2.weight"] + params["2.bias"]
        return -jax.numpy.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], axis=1)[:, 0]

    batches = fedjax.ShuffleRepeatBatchHParams(work.size, num_epochs=None, num_steps=work.steps, skip_shuffle=True)
    fedjax.set_for_each_client_backend("jit")
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.grad(loss), fedjax.optimizers.sgd(work.rate), fedjax.optimizers.sgd(1.0), batches
    )
    examples = [{"x": x, "y": y.astype(np.int32)} for x, y in zip(*work.data(), strict=True)]
    cohort = [(i, fedjax.ClientDataset(each), jax.random.PRNGKey(i)) for i, each in enumerate(examples)]
    state = algorithm.init({name: jax.numpy.asarray(value.T) for name, value in work.weights().items()})

    def play() -> Weights:
        nonlocal state
        state, _ = algorithm.apply(state, cohort)
        return {name: np.asarray(value).T for name, value in state.params.items()}

    return clock(play, repeats)


def pfl(work: Work, repeats: int) -> Rounds:
    """Time pfl-research (Apple) with PyTorch and its simulated backend, in one process."""
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
    from pfl.data import FederatedDataset, get_user_sampler
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel
    from torch.nn import Linear, ReLU, Sequential, functional

    torch.set_num_threads(1 if work.tiny else torch.get_num_threads())

    class Network(Sequential):
        def loss(self, x: Any, y: Any) -> Any:
            return functional.cross_entropy(self(x), y)

        def metrics(self, *_: Any) -> dict[str, Any]:  # pfl evaluates the first round, which is not timed
            return {}

    network = Network(Linear(work.features, work.hidden), ReLU(), Linear(work.hidden, work.classes))
    network.load_state_dict({name: torch.from_numpy(value) for name, value in work.weights().items()})
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    users = [PyTorchTensorDataset((x, y)) for x, y in zip(*map(torch.from_numpy, work.data()), strict=True)]
    cohort = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(range(work.clients))))
    backend = SimulatedBackend(cohort, None, postprocessors=[WeightByDatapoints()])
    epochs = work.steps // len({rows.start for rows in work.batches()})
    training = NNTrainHyperParams(local_batch_size=work.size, local_num_epochs=epochs, local_learning_rate=work.rate)
    algorithm = FederatedAveraging()
    played = itertools.count(1)  # the algorithm continues where it stopped

    def play() -> Weights:
        settings = NNAlgorithmParams(next(played), repeats + 1, train_cohort_size=work.clients, val_cohort_size=None)
        algorithm.run(settings, backend, model, training, send_metrics_to_platform=False)
        return {name: value.numpy().copy() for name, value in network.state_dict().items()}

    return clock(play, repeats)


def flower(work: Work, repeats: int) -> Rounds:
    """Time Flower with its simulation on Ray: PyTorch clients with one core each, on all cores."""
    # Nothing is sent over the network. Ray still asks a cloud for metadata, here through a proxy that does not exist.
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "http_proxy": "http://127.0.0.1:9"}
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # 127.0.0.1 instead of the machine's address
    import torch
    from flwr.app import ArrayRecord, Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    found: list[Rounds] = []
    inputs, hidden, outputs, rate, batches = work.features, work.hidden, work.classes, work.rate, work.batches()

    def serve(grid: Grid, _: Context) -> None:
        arrays = ArrayRecord({name: torch.from_numpy(value) for name, value in work.weights().items()})
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=work.clients, min_available_nodes=work.clients)

        def play() -> Weights:
            nonlocal arrays
            arrays = strategy.start(grid, arrays, num_rounds=1).arrays
            assert arrays, "no client returned a model"
            return {name: value.numpy() for name, value in arrays.to_torch_state_dict().items()}

        found.append(clock(play, repeats))

    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/x.npy", work.data()[0])
        np.save(f"{folder}/y.npy", work.data()[1])

        def train(message: Message, context: Context) -> Message:
            import numpy as np  # imported here: pickling is fast if the function refers to little
            import torch
            from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
            from torch.nn import Linear, ReLU, Sequential, functional

            model = Sequential(Linear(inputs, hidden), ReLU(), Linear(hidden, outputs))
            model.load_state_dict(message.content["arrays"].to_torch_state_dict())
            client = int(context.node_config["partition-id"])
            x, y = (torch.from_numpy(np.load(f"{folder}/{name}.npy", mmap_mode="r")[client].copy()) for name in "xy")
            optimizer = torch.optim.SGD(model.parameters(), lr=rate)
            for rows in batches:
                optimizer.zero_grad()
                loss: Any = functional.cross_entropy(model(x[rows]), y[rows])
                loss.backward()
                optimizer.step()
            reply = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
            return Message(RecordDict(reply), reply_to=message)

        server, client = ServerApp(), ClientApp()
        server.main()(serve)
        client.train()(train)
        settings = {"init_args": {"num_cpus": os.cpu_count(), "_temp_dir": folder}, "client_resources": {"num_cpus": 1}}
        run_simulation(server, client, work.clients, backend_config=settings)
    return found[0]


PEERS: dict[str, Callable[[Work, int], Rounds]] = {"fedjax": fedjax, "pfl": pfl, "flower": flower}
WORKS = {"A": Work(20, 600, 784, 200, 10, 50, 0, rate=0.007), "B": Work(1000, 20, 64, 32, 10, 5, 4)}
PACKAGES = {"fedjax": ("fedjax", "jax"), "pfl": ("pfl", "torch"), "flower": ("flwr", "ray", "torch")}


def time_peers(work: Work, repeats: int) -> dict[str, float | str]:
    """Return the median seconds per round of each peer, or the reason why it was skipped."""
    pythons = interpreters(os.environ.get("COTERIE_PEERS_PYTHON", ""))
    found = {name: ask(name, work, repeats, pythons.get(name, sys.executable)) for name in PEERS}
    return {name: each.get("skipped") or statistics.median(each["seconds"]) for name, each in found.items()}


def interpreters(text: str) -> dict[str, str]:
    """Return the interpreters that COTERIE_PEERS_PYTHON names."""
    from coterie.errors import UserError  # the interpreter of a peer does not need it

    pythons = dict(item.strip().partition("=")[::2] for item in text.split(",") if item.strip())
    for name, python in pythons.items():
        if name not in PEERS:
            raise UserError(f"COTERIE_PEERS_PYTHON: no peer {name!r} in NAME=PYTHON,...; available: {', '.join(PEERS)}")
        if shutil.which(python) is None:
            raise UserError(
                f"COTERIE_PEERS_PYTHON: the interpreter {python!r} of {name} does not exist; write {name}=PYTHON"
            )
    return pythons


def ask(name: str, work: Work, repeats: int, python: str) -> dict[str, Any]:
    """Run `answer` in its own process and return its result."""
    # With -P, files next to this one cannot hide modules.
    command = [python, "-P", __file__, name, str(repeats), json.dumps(asdict(work))]
    with Popen(command, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True) as process:  # noqa: S603
        try:
            printed, complaints = process.communicate(timeout=LIMIT)
        except TimeoutExpired:
            return {"skipped": f"took more than {LIMIT} seconds"}
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # together with all processes that it started
    if process.returncode:
        return {"skipped": f"failed: {[f'exit code {process.returncode}', *complaints.splitlines()][-1]}"}
    return dict(json.loads(printed.splitlines()[-1]))


def answer(name: str, work: Work, repeats: int) -> dict[str, Any]:
    """Time a peer. Returns the seconds of every round and the versions of packages, or why the peer was skipped."""
    try:
        model, seconds = PEERS[name](work, repeats)
    except ModuleNotFoundError as error:
        return {"skipped": f"not installed: {error}"}
    for key, right in reference(work).items():
        if not np.allclose(model[key], right, rtol=1e-3, atol=1e-5):
            return {"skipped": f"not the same work: {key} is off by {abs(model[key] - right).max():.1g} after a round"}
    return {"versions": {package: version(package) for package in PACKAGES[name]}, "seconds": seconds}


def main(name: str, repeats: str = "5", work: str = "") -> None:
    """Print one line of JSON: the result for the given work, or those for A and B."""
    if work:
        found = answer(name, Work(**json.loads(work)), int(repeats))
    else:
        found = {letter: ask(name, each, int(repeats), sys.executable) for letter, each in WORKS.items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
