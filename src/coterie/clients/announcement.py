"""What the server announces before the first round: all that a client must know, besides its own data."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from coterie import registry, streams
from coterie.clients.work import Work
from coterie.core.method import Labels, Method
from coterie.core.objective import Classification, Objective, Regression
from coterie.core.suitable import first_outputs
from coterie.core.task import Task
from coterie.core.tree import Tree
from coterie.errors import UserError
from coterie.models.init import draw
from coterie.models.model import Model
from coterie.models.module import Own

OBJECTIVES: dict[str, type[Objective]] = {"classification": Classification, "regression": Regression}


@dataclass(frozen=True)
class Inputs:
    """The kind of inputs that clients have."""

    shape: tuple[int, ...]
    """Shape of one input, or of one node of a graph."""
    tokens: tuple[int, int] | None = None
    """Smallest and largest token, if inputs are tokens."""
    is_graph: bool = False

    def example(self, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return an input of this kind, which comes from no client. Tokens are the largest ones."""
        if self.tokens is not None:
            return torch.full((1, *self.shape), self.tokens[1], device=device)
        values = streams.generator(0, "example").random((1, *self.shape))
        return torch.from_numpy(values).to(device, dtype)


@dataclass(frozen=True)
class Announcement:
    """A description of the federation and of the work, small enough to be sent to every client."""

    method: Method
    """The method, with all hyper-parameters filled in."""
    model: Model
    labels: Labels
    """Label space: each client's own classes, or the union of all classes."""
    classes: tuple[Any, ...]
    """Names of all classes; empty if numbers are predicted."""
    num_outputs: int
    """Number of outputs of the initial network."""
    inputs: Inputs
    objective: Objective
    seed: int
    dtype: Literal["float32", "float64"] = "float32"

    def network(self) -> nn.Module:
        """Draw the initial network."""
        with streams.torch_seeded(streams.key(self.seed, "model")):
            return draw(self.model, self.inputs.shape, self.num_outputs)

    def work(self, device: torch.device, initial: Tree | None = None) -> Work:
        """Return the work of a client, with the initial values of the network if they are given."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        net = self.network().to(dtype)
        if self.inputs.tokens is not None:  # on a GPU, a token that an embedding does not know ends the process
            first_outputs(net.eval(), self.inputs.example(dtype, torch.device("cpu")))
        net = net.to(device)
        if initial is not None:
            _set(net, initial)
        if all(value.ndim < 5 for value in (*net.parameters(), *net.buffers())):  # images; volumes are not supported
            net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        task = Task(
            net,
            self.model.head,
            self.inputs.example(dtype, device),
            self.model.buffers,
            self.model.head_init,
            self.objective,
            self.inputs.is_graph,
        )
        if task.num_outputs < self.num_outputs:
            raise UserError(f"the model has {task.num_outputs} outputs, but the labels need {self.num_outputs}")
        return Work(self.method, task, self.labels, self.seed)

    def to_json(self) -> dict[str, Any]:
        """Return the announcement as plain values."""
        return {
            "method": _named("method", self.method),
            "model": _named("model", self.model),
            "labels": self.labels,
            "classes": [label.item() if isinstance(label, np.generic) else label for label in self.classes],
            "num_outputs": self.num_outputs,
            "inputs": dataclasses.asdict(self.inputs),
            "objective": {"name": type(self.objective).__name__.lower(), **dataclasses.asdict(self.objective)},  # type: ignore[call-overload]
            "seed": self.seed,
            "dtype": self.dtype,
        }

    @classmethod
    def from_json(
        cls, tree: Mapping[str, Any], model: nn.Module | Model | None = None, method: Method | None = None
    ) -> "Announcement":
        """Read an announcement. A model or a method that is not part of Coterie has to be given."""
        tokens = tree["inputs"]["tokens"]
        inputs = Inputs(tuple(tree["inputs"]["shape"]), tokens and (tokens[0], tokens[1]), tree["inputs"]["is_graph"])
        objective = dict(tree["objective"])
        if method is not None and _named("method", method) != tree["method"]:
            raise UserError(f"the run was trained with {_worded(tree['method'])}, not with {method!r}")
        return cls(
            method=method or _read("method", tree["method"]),
            model=model if isinstance(model, Model) else _read("model", tree["model"], model),
            labels=tree["labels"],
            classes=tuple(tree["classes"]),
            num_outputs=tree["num_outputs"],
            inputs=inputs,
            objective=OBJECTIVES[objective.pop("name")](**objective),
            seed=tree["seed"],
            dtype=tree["dtype"],
        )


def _set(net: nn.Module, initial: Tree) -> None:
    try:
        net.load_state_dict(initial)
    except RuntimeError as error:
        raise UserError(f"this is not the model of the run: {error}") from None


def _named(kind: str, part: Any) -> dict[str, Any]:
    options = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    plain = {key: value for key, value in options.items() if isinstance(value, str | int | float | list | dict)}
    return {"name": registry.name_of(kind, part), **plain}


def _worded(tree: Mapping[str, Any]) -> str:
    options = ", ".join(f"{key}={value!r}" for key, value in tree.items() if key != "name")
    return f"{tree['name']}({options})"


def _read(kind: str, tree: Mapping[str, Any], net: nn.Module | None = None) -> Any:
    options = dict(tree)
    name = options.pop("name")
    if net is not None:
        known = {field.name for field in dataclasses.fields(Own)}
        return Own(net=net, **{"head_name": "head", **{key: options[key] for key in options.keys() & known}})
    if name not in registry.names(kind):
        what = "an nn.Module" if kind == "model" else f"the method {name}"
        raise UserError(f"the run was trained with {what} of your own: pass it as coterie.load(folder, {kind}=...)")
    return registry.load(kind, name)(**options)
