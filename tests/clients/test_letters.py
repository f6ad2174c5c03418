"""Letters between the server and single clients: who gets what, what they cost, and which are refused."""

import pytest
import torch

import reference as ref
from coterie import registry
from coterie.clients.fused import Fused
from coterie.core.method import Exchanges, FixedBody, Reply, settings
from coterie.core.steps import sgd_reply
from coterie.errors import DivergedError, UserError
from coterie.methods import FedAvg
from coterie.testing import check_method

SIZES = (5, 3, 8, 1, 6, 3)
BAD = 3
"""Number of examples of the clients whose letters are broken: clients 1 and 5."""


@settings
class Ring(Exchanges):
    """FedAvg in which each client writes a letter, and gets that of the client before it."""

    gradients_per_step = 1

    broken: str = ""

    def init_personal(self, task, client):
        number = float("0" + client.id.removeprefix("client-")) if client.id[-1:].isdigit() else 0.0
        return {".own": torch.tensor([number, 0.0]), ".got": torch.zeros(2)}

    def local_update(self, task, shared, personal, data, rnd):
        reply = sgd_reply(task, {**shared}, {}, data, 1, 0.1)
        own = personal[".own"]
        letter = {"a": own, "n": own[0].to(torch.int64)}
        if len(data.y) == BAD:
            changed = {
                "missing": {"a": own},
                "extra": {**letter, "x": data.x[0]},
                "shape": {**letter, "a": own[:1]},
                "type": {**letter, "n": own[0]},
                "not finite": {**letter, "a": own * torch.nan},
                "order": {"n": letter["n"], "a": own},
            }
            letter = changed.get(self.broken, letter)
        return Reply(reply.tensors, reply.numbers, {**personal, ".own": own + 10}, letter)

    def letter_form(self, task):
        return {"a": torch.zeros(2), "n": torch.zeros((), dtype=torch.int64)}

    def exchange(self, letters, rnd):
        match self.broken:
            case "order" if list(letters) != ["a", "n"]:
                raise ValueError("sums over the names would round in another way")
            case "rows":
                return {"a": letters["a"][1:]}
            case "number":
                return {"a": 1.0}
            case "infinite":
                return {"a": letters["a"] / 0}
            case "raises":
                raise KeyError("b")
        return {"a": letters["a"].roll(1, 0)}

    def read(self, task, personal, letter, rnd):
        return {**personal, ".got": letter["a"]}

    def adapt(self, task, shared, personal, data, steps):
        return personal


def setup(method):
    made = ref.setup(method, ref.federation(SIZES))
    return made, made.method.init_shared(made.task)


def got(store):
    return [int(store[i][".got"][0]) for i in range(len(SIZES))]


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("cohort", [[0, 1, 2, 3, 4, 5], [5, 0, 3], [2]])
def test_letters_are_sorted_by_client_and_reach_the_client_that_they_are_for(cohort, engine):
    game, shared = setup(Ring())
    store, order = ref.store(game, registry.load("engine", engine)()), sorted(cohort)
    ref.play(game, shared, {}, store, cohort, ref.announced(game, len(cohort)))
    before = dict(zip(order, order[-1:] + order[:-1], strict=True))
    assert got(store) == [before.get(i, 0) for i in range(len(SIZES))]
    assert [int(store[i][".own"][0]) for i in range(len(SIZES))] == [i + 10 * (i in cohort) for i in range(len(SIZES))]


def test_letters_pass_through_a_cluster():
    pytest.importorskip("ray", reason="pip install 'coterie[ray]'")
    game, shared = setup(Ring())
    crew = registry.load("engine", "ray")(workers=2)
    store = ref.store(game, crew)
    try:
        ref.play(game, shared, {}, store, [0, 1, 2, 3, 4, 5], ref.announced(game, 6))
        assert got(store) == [5, 0, 1, 2, 3, 4]
    finally:
        crew.close()


def test_letters_cost_their_bytes_in_both_directions():
    costs = []
    for method in (Ring(), FedAvg(tau=1, eta=0.1)):
        game, shared = setup(method)
        costs.append(ref.play(game, shared, {}, ref.store(game), [0, 2, 4], ref.announced(game, 3)).cost)
    assert costs[0].bytes_up - costs[1].bytes_up == 3 * (2 * 4 + 8)
    assert costs[0].bytes_down - costs[1].bytes_down == 3 * 2 * 4


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("missing", "'n' is missing in the letter"),
        ("extra", "the letter's tensor 'x' is not part of the method's letters"),
        ("shape", "the letter's tensor 'a' has shape (1,) instead of (2,)"),
        ("type", "the letter's tensor 'n' has type torch.float32 instead of torch.int64"),
        ("not finite", "the letter's tensor 'a' has values that are NaN or infinite"),
    ],
)
def test_a_bad_letter_refuses_the_whole_reply(broken, why, engine):
    game, shared = setup(Ring(broken=broken))
    store = ref.store(game, registry.load("engine", engine)())
    played = ref.play(game, shared, {}, store, [0, 1, 2, 3, 4, 5], ref.announced(game, 6))
    assert played.refused == {1: why, 5: why}
    assert got(store) == [4, 0, 0, 2, 3, 0]
    assert [int(store[i][".own"][0]) for i in (1, 5)] == [1, 5], "these clients keep the state they had"
    others = ref.store(game)
    weights = torch.tensor([5, 8, 1, 6], dtype=torch.float64) / sum(SIZES)
    total = others.update(shared, [0, 2, 3, 4], weights, ref.announced(game, 6), False).update
    for name, value in total.tensors.items():
        torch.testing.assert_close(played.shared[name], shared[name] + value)


@pytest.mark.parametrize("cohort", [[1, 5], [0, 1, 5], [0, 1, 2]])
def test_the_names_of_letters_are_in_the_order_that_the_method_declares(cohort):
    game, shared = setup(Ring(broken="order"))
    played = ref.play(game, shared, {}, ref.store(game), cohort, ref.announced(game, len(cohort)))
    assert not played.refused


def test_a_letter_that_nobody_expects_is_refused():
    class Chatty(FedAvg):
        def local_update(self, task, shared, personal, data, rnd):
            return super().local_update(task, shared, personal, data, rnd)._replace(letter={"x": data.x})

    game, shared = setup(Chatty())
    with pytest.raises(DivergedError, match="the letter's tensor 'x' is not part of the method's letters"):
        ref.play(game, shared, {}, ref.store(game), [0, 1], ref.announced(game, 2))


@pytest.mark.parametrize(
    ("broken", "error", "words"),
    [
        ("rows", UserError, "Ring.exchange must return a dict of tensors with 3 rows, one for each letter, not"),
        ("number", UserError, "Ring.exchange must return a dict of tensors with 3 rows"),
        ("raises", UserError, "Ring.exchange failed, and must return .*: KeyError: 'b'"),
        ("infinite", DivergedError, "round 1: a letter to a client has NaN or infinite values"),
    ],
)
def test_what_the_server_sends_is_checked_and_nothing_is_kept(broken, error, words):
    game, shared = setup(Ring(broken=broken))
    store = ref.store(game)
    with pytest.raises(error, match=words):
        ref.play(game, shared, {}, store, [0, 2, 4], ref.announced(game, 3))
    assert [int(store[i][".own"][0]) for i in (0, 2, 4)] == [0, 2, 4]


def test_the_fused_engine_says_why_it_cannot_do_letters():
    @settings
    class Both(FixedBody, Exchanges):
        def on_features(self, task, personal, features, data, rnd):
            raise AssertionError

        adapt, letter_form, exchange, read = Ring.adapt, Ring.letter_form, Ring.exchange, Ring.read

    game, _ = setup(Both())
    assert Fused().unfit(game.load) == (
        "clients send the server a letter each, and this engine only computes sums over the cohort"
    )


def test_check_method_covers_letters():
    assert check_method(Ring()) == ["loop", "vmap"]


@pytest.mark.parametrize(
    ("broken", "error", "words"),
    [("rows", UserError, "Ring.exchange must return"), ("shape", AssertionError, r"client-1 is refused: the letter's")],
)
def test_check_method_notices_broken_letters(broken, error, words):
    with pytest.raises(error, match=words):
        check_method(Ring(broken=broken))
