"""Statistics over clients, computed by hand, and what each protocol evaluates."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import coterie
import reference as ref
from coterie.clients import work
from coterie.measure.evaluate import Evaluation, Scores, evaluate, measured, statistics
from coterie.measure.protocols import OF_ALL_CLIENTS, Statistics
from coterie.methods import PFLEGO, FedAvg


def test_statistics_by_hand():
    accuracy = np.arange(20) / 20
    sizes = np.array([1.0] * 19 + [21.0])
    figures = statistics(Scores(list(range(20)), accuracy, accuracy + 1, accuracy + 2, accuracy + 3), sizes)
    assert figures == Statistics(
        mean=pytest.approx(0.475),
        weighted_mean=pytest.approx((accuracy[:19].sum() + 21 * 0.95) / 40),
        std=pytest.approx(np.sqrt((20**2 - 1) / 12) / 20),
        stderr=pytest.approx(np.sqrt((20**2 - 1) / 12) / 20 / np.sqrt(19)),
        bottom_decile=pytest.approx(0.1),  # sorted[20 // 10]
        restricted_mean=pytest.approx(1.475),
        loss=pytest.approx(2.475),
        train_loss=pytest.approx(3.475),
        clients=20,
    )


def test_one_client_has_no_standard_error():
    figures = statistics(Scores([3], *np.array([[0.5], [0.5], [1.0], [np.inf]])), np.array([8.0]))
    assert (figures.loss, figures.train_loss) == (1.0, None)  # JSON has no infinity
    assert (figures.mean, figures.std, figures.stderr, figures.clients) == (0.5, 0.0, None, 1)


def test_clients_without_a_test_split_are_left_out():
    """Their training losses count, as those of all clients do."""
    counts = {0: (2, 1, 1, 4.0), 1: (0, 0, 0, 0.0), 2: (3, 3, 3, 3.0)}
    train = {0: counted(2, 1, 1, 2.0), 1: counted(4, 1, 1, 8.0), 2: counted(1, 1, 1, 6.0)}
    scores = Scores.of({i: counted(*each) for i, each in counts.items()}, train)
    figures = statistics(scores, np.array([1.0, 0.0, 3.0]))
    assert figures.weighted_mean == pytest.approx(0.875)
    assert (figures.loss, figures.train_loss) == (1.5, 3.0)


def test_no_clients_no_figures():
    assert statistics(Scores.of({}), np.array([])) == Statistics()


def counted(examples, right, restricted, loss):
    numbers = {"examples": examples, "right": right, "restricted": restricted, "loss": loss}
    return {name: float(number) for name, number in numbers.items()}


def score(setup, i, shared, personal):
    (counts,) = work.score(setup.load.work, shared, personal, setup.data(i, "test", 0))
    scores = Scores.of({i: {name: float(number) for name, number in counts.items()}})
    return scores.accuracy[0], scores.restricted[0]


def of_all(setup, shared, store, adapt_steps) -> Evaluation:
    existing, new = setup.federation.existing.tolist(), setup.federation.new.tolist()
    return evaluate(store, shared, adapt_steps, existing, new)


def test_restricted_accuracy_chooses_among_the_clients_own_classes():
    """The shared head prefers a class that the client does not have: all answers are wrong unless restricted."""
    setup = ref.setup(FedAvg())
    shared = setup.task.shared_model()
    own = setup.federation.classes.row(1).tolist()
    foreign = next(label for label in range(5) if label not in own)
    shared["head.weight"] = torch.zeros_like(shared["head.weight"])
    shared["head.bias"] = torch.tensor([1.0 * (label == own[0]) for label in range(5)], dtype=torch.float64)
    shared["head.bias"][foreign] = 9.0
    assert score(setup, 1, shared, {}) == (0.0, 0.5)  # its six test examples alternate between two classes


def test_as_is_is_what_is_stored_and_adapted_is_trained_further():
    setup = ref.setup(PFLEGO(beta=0.5), ref.federation(sizes=(5, 3, 8, 6, 7, 9), new=2))
    shared, store = setup.task.shared_body(), ref.store(setup)
    store[0] = {name: value + 1 for name, value in store[0].items()}
    kept = [store[i] for i in range(6)]
    result = of_all(setup, shared, store, adapt_steps=30)

    assert result.test.as_is.clients == result.test.adapted.clients == [0, 1, 2, 3]
    assert result.test.before.clients == result.test.after.clients == [4, 5]
    for scores, i in ((result.test.as_is, 0), (result.test.as_is, 1), (result.test.before, 4)):
        personal = store[i]
        assert scores.accuracy[scores.clients.index(i)] == score(setup, i, shared, personal)[0]
    for scores, i in ((result.test.adapted, 0), (result.test.after, 5)):
        personal = setup.method.adapt(setup.task, shared, store[i], setup.data(i, "train", 0), 30)
        assert scores.accuracy[scores.clients.index(i)] == score(setup, i, shared, personal)[0]
    for i, before in enumerate(kept):
        assert all(torch.equal(value, before[name]) for name, value in store[i].items())


def test_train_loss_is_objective_1():
    setup = ref.setup(PFLEGO(), ref.federation(sizes=(5, 3, 8, 6), new=1))
    shared, sizes = setup.task.shared_body(), setup.federation.sizes()[:3]
    losses = [
        ref.loss_and_gradient(ref.arrays({**shared, **ref.store(setup)[i]}), *ref.examples(setup, i))[0]
        for i in range(3)
    ]
    result = of_all(setup, shared, ref.store(setup), 0)
    assert result.train_loss == pytest.approx((sizes * losses).sum() / sizes.sum(), abs=1e-12)


@pytest.mark.parametrize("method", [FedAvg(eta=0.2), PFLEGO(beta=0.2)])
def test_equations_1_and_2_of_feddecay_are_mean_losses_before_and_after_adaptation(method):
    """All clients count equally. PFLEGO adapts by head steps, and its losses come from features that are known."""
    setup = ref.setup(method, ref.federation(sizes=(5, 3, 8, 6, 4), new=2))
    shared, kept = method.init_shared(setup.task), ref.store(setup)
    names = ref.HEAD if isinstance(method, PFLEGO) else ref.BODY + ref.HEAD
    losses = {"train": ([], []), "test": ([], [])}
    for i in range(5):
        w, (x, y) = {**ref.arrays(shared), **ref.arrays(kept[i])}, ref.examples(setup, i)
        adapted, held = w, setup.data(i, "test", 0)
        for _ in range(2):
            adapted = ref.step(adapted, ref.loss_and_gradient(adapted, x, y)[1], 0.2, names)
        for split, on in (("train", (x, y)), ("test", (held.x.numpy(), held.y.numpy()))):
            for found, model in zip(losses[split], (w, adapted), strict=True):
                found.append(ref.loss_and_gradient(model, *on)[0])
    # PFLEGO takes two head steps and compares losses; none of them is undone here
    figures = measured(kept, of_all(setup, shared, kept, 2), Scores.of({}))
    for group, members in (("existing", slice(0, 3)), ("new", slice(3, 5))):
        protocols = ("existing.as_is", "existing.adapted") if group == "existing" else ("new.before", "new.after")
        for place, key in enumerate(protocols):
            assert figures[key].train_loss == pytest.approx(np.mean(losses["train"][place][members]), abs=1e-12)
            assert figures[key].loss == pytest.approx(np.mean(losses["test"][place][members]), abs=1e-12)
    assert figures.existing.adapted.train_loss < figures.existing.as_is.train_loss
    assert figures.train_loss != pytest.approx(figures.existing.as_is.train_loss, abs=1e-6)  # by size


def test_the_cohort_has_losses_on_test_examples_too():
    setup = ref.setup(FedAvg(tau=2, eta=0.2))
    shared, kept = setup.task.shared_model(), ref.store(setup)
    played = ref.play(setup, shared, {}, kept, [0, 2], ref.announced(setup, 2), scored=True)
    found = []
    for i in (0, 2):
        w, held = ref.arrays(shared), setup.data(i, "test", 0)
        for _ in range(2):
            w = ref.step(w, ref.loss_and_gradient(w, *ref.examples(setup, i))[1], 0.2, ref.BODY + ref.HEAD)
        found.append(ref.loss_and_gradient(w, held.x.numpy(), held.y.numpy())[0])
    figures = statistics(Scores.of(played.scores), np.ones(2))
    assert figures.loss == pytest.approx(np.mean(found), abs=1e-12)
    assert figures.train_loss is None


@pytest.mark.parametrize("method", [PFLEGO(), FedAvg(tau=3)])
def test_train_score_is_the_share_of_right_answers_on_training_examples(method):
    setup = ref.setup(method, ref.federation(sizes=(5, 3, 8, 6), new=1))
    shared, store = setup.method.init_shared(setup.task), ref.store(setup)
    shares, restricted = [], []
    for i in range(3):
        x, y = ref.examples(setup, i)
        outputs = ref.outputs(ref.arrays({**shared, **store[i]}), x)
        own = np.unique(y)
        shares.append((outputs.argmax(1) == y).mean())
        restricted.append((own[outputs[:, own].argmax(1)] == y).mean())
    assert 0 < sum(shares) < 3
    evaluation = of_all(setup, shared, store, 0)
    found = measured(store, evaluation, Scores.of({})).train_score
    assert evaluation.train.clients == [0, 1, 2]
    assert found.mean == pytest.approx(np.mean(shares), abs=1e-12)
    assert found.weighted_mean == pytest.approx(np.average(shares, weights=(5, 3, 8)), abs=1e-12)
    assert found.restricted_mean == pytest.approx(np.mean(restricted), abs=1e-12)


class RefusesNothing(nn.Module):
    """A model that fails on an empty batch, as many models do."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.reshape(len(x), -1)) + x.max()


@pytest.mark.parametrize("kind", ["loop", "vmap"])
def test_a_client_without_test_examples_is_not_asked(kind):
    clients = {
        "tested": (np.ones((3, 4)), [0, 1, 2], np.ones((2, 4)), [0, 1]),
        "untested": (np.ones((2, 4)), [3, 4], np.ones((0, 4)), []),
    }
    run = coterie.train(
        coterie.Federation.from_arrays(clients), model=RefusesNothing(), head="", method="fedavg", rounds=1, engine=kind
    )
    by_client = {row["client"]: row["accuracy"] for row in run.clients()}
    assert np.isnan(by_client["untested"])
    assert by_client["tested"] >= 0


@pytest.mark.parametrize("kind", ["loop", "vmap"])
def test_validation_examples_are_scored_as_test_examples_are(kind):
    """The validation examples of the federation are its test examples, so all figures must be equal."""
    rng = np.random.default_rng(0)
    clients = {}
    for name in ("a", "b", "c"):
        x, y = rng.normal(size=(9, 4)), rng.integers(0, 2, size=9)
        clients[name] = (x, np.arange(9) % 2, x[:5], y[:5], x[:5], y[:5])
    run = coterie.train(
        coterie.Federation.from_arrays(clients, new=["c"]), model="mlp", method="pflego", rounds=2, engine=kind
    )
    validation = run.summary.validation
    for protocol in OF_ALL_CLIENTS:
        assert validation[protocol.key] == replace(run.summary[protocol.key], last10_mean=None)
    assert validation.existing.participants is None
    assert run.history[-1].eval.validation == validation
    assert run.history[-1].eval.train_score == run.summary.train_score
    assert run.summary.train_score.clients == 2


def test_without_validation_examples_there_are_no_validation_figures():
    clients = {"a": (np.ones((3, 4)), [0, 1, 0], np.ones((2, 4)), [0, 1])}
    assert coterie.train(coterie.Federation.from_arrays(clients), rounds=1).summary.validation is None
