"""`coterie predict` gives what the model gives."""

import csv
from io import StringIO

import numpy as np
import torch
from torch import nn

import reference as ref
from commands import coterie, in_folder
from coterie import Federation, load, train
from coterie.methods import FedAvg


def table(path, x):
    header = ",".join(["y", *(f"f{i}" for i in range(x.shape[1]))])
    path.write_text("\n".join([header, *(",".join(["0", *map(repr, row)]) for row in x.tolist())]))


def test_predictions_are_those_of_the_model(monkeypatch, tmp_path, capsys):
    train(ref.federation((5, 3, 8)), model="logreg", method="fedper", rounds=2, out=tmp_path / "run")
    x = np.random.default_rng(0).normal(size=(6, 4))
    model = load(tmp_path / "run").model("client-2")
    expected = model(torch.from_numpy(x).float()).softmax(1)
    np.savez(tmp_path / "x.npz", x=x)
    table(tmp_path / "x.csv", x)
    with in_folder(tmp_path, monkeypatch):
        for file in ("x.npz", "x.csv"):
            arguments = ("--state", "run", "--client", "client-2", "--data", file, "--out", "y.csv")
            assert coterie(monkeypatch, "predict", *arguments) == 0
            rows = list(csv.DictReader(StringIO((tmp_path / "y.csv").read_text())))
            assert [row["prediction"] for row in rows] == [str(model.classes[k]) for k in expected.argmax(1).tolist()]
            np.testing.assert_allclose([float(row["probability"]) for row in rows], expected.max(1).values.detach())
        capsys.readouterr()
        assert coterie(monkeypatch, "predict", "--state", "run", "--client", "client-2", "--data", "x.npz") == 0
        assert capsys.readouterr().out.startswith("prediction,probability")


def test_mistakes_are_named(monkeypatch, tmp_path, capsys):
    train(ref.federation((5, 3, 8)), model="logreg", method="fedper", rounds=1, out=tmp_path / "run")
    np.savez(tmp_path / "wide.npz", x=np.zeros((2, 5)))
    np.savez(tmp_path / "z.npz", z=np.zeros((2, 4)))
    np.savez(tmp_path / "nan.npz", x=np.full((2, 4), np.nan))
    np.savez(tmp_path / "text.npz", x=np.full((2, 4), "one"))
    np.savez(tmp_path / "complex.npz", x=np.ones((2, 4), complex))
    with in_folder(tmp_path, monkeypatch):
        for options, words in (
            (("--data", "wide.npz", "--client", "client-0"), "shape (5,), and the model takes (4,)"),
            (("--data", "z.npz", "--client", "client-0"), "needs an array x; found: z"),
            (("--data", "nan.npz", "--client", "client-0"), "nan.npz has values that are NaN or infinite"),
            (("--data", "text.npz", "--client", "client-0"), "text.npz has type <U3; save it with numbers only"),
            (("--data", "complex.npz", "--client", "client-0"), "complex.npz has type complex128"),
            (("--data", "none.csv", "--client", "client-0"), "none.csv does not exist"),
            (("--data", "wide.npz"), "name the client"),
        ):
            assert coterie(monkeypatch, "predict", "--state", "run", *options) == 2
            assert words in capsys.readouterr().err


def test_unknown_tokens_are_named(monkeypatch, tmp_path, capsys):
    rng = np.random.default_rng(0)
    data = {n: (rng.integers(0, 9, (6, 4)), [0, 1] * 3, rng.integers(0, 9, (2, 4)), [0, 1]) for n in "ab"}
    federation = Federation.from_arrays(data, tokens=True)
    train(federation, model=Words(), method=FedAvg(tau=1), rounds=1, out=tmp_path / "run")
    np.savez(tmp_path / "x.npz", x=np.full((2, 4), 1000))
    monkeypatch.setattr("coterie.run.load", lambda folder: load(folder, model=Words()))
    with in_folder(tmp_path, monkeypatch):
        assert coterie(monkeypatch, "predict", "--state", "run", "--client", "a", "--data", "x.npz") == 2
    assert "tokens from 1000 to 1000, and the model does not know all of them" in capsys.readouterr().err


class Words(nn.Module):
    """The mean of the vectors of words, and a head."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(9, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.words(x).mean(1))
