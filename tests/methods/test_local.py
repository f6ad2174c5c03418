"""Local training: by hand in NumPy, with no tensors sent."""

import pytest
import torch

import reference as ref
from coterie.methods import Local
from coterie.recipe import Recipe
from coterie.training import Training

ALL = ref.BODY + ref.HEAD


def test_two_rounds_by_hand():
    setup = ref.setup(Local(tau=3, beta=0.2))
    store, body = ref.store(setup), ref.arrays(setup.task.shared_body())
    own = {i: ref.arrays(ref.store(setup)[i]) for i in range(4)}
    assert [len(params["head.bias"]) for params in own.values()] == [3, 2, 3, 1]
    for params in own.values():
        body_of = {name: torch.from_numpy(params[name]) for name in ref.BODY}
        ref.assert_same(body_of, body, 0)  # all clients start from one body
    sizes = setup.federation.sizes()
    for index, cohort in enumerate(([0, 1], [1, 2]), start=1):
        loss = 0.0
        for i in cohort:
            for _ in range(3):
                last, gradient = ref.loss_and_gradient(own[i], *ref.examples(setup, i))
                own[i] = ref.step(own[i], gradient, 0.2, ALL)
            loss += sizes[i] / sum(sizes[j] for j in cohort) * last
        played = ref.play(setup, {}, {}, store, cohort, ref.announced(setup, 2, index))
        assert played.shared == {}
        assert played.loss == pytest.approx(loss)
        assert (played.cost.bytes_down, played.cost.bytes_up) == (0, 8 * len(cohort))  # the loss in float64
        for i in range(4):
            ref.assert_same(store[i], own[i])


def test_adaptation_is_more_of_the_same():
    setup = ref.setup(Local(beta=0.2))
    params = ref.arrays(ref.store(setup)[0])
    for _ in range(4):
        params = ref.step(params, ref.loss_and_gradient(params, *ref.examples(setup, 0))[1], 0.2, ALL)
    ref.assert_same(setup.method.adapt(setup.task, {}, ref.store(setup)[0], setup.data(0, "train", 0), 4), params)


def test_a_run_without_a_shared_model_is_kept_and_resumed(tmp_path):
    changes = {"rounds": 4, "checkpoint_every": 1, "clients_per_round": 2}
    recipe = Recipe.parse({"method": {"name": "local", "tau": 2}, "run": changes, "eval": {"adapt_steps": 1}})
    whole = Training(recipe, ref.federation()).play()
    with pytest.raises(KeyboardInterrupt):
        Training(recipe, ref.federation(), tmp_path / "run").play(should_stop=lambda: True)  # after the first round
    resumed = Training(recipe, ref.federation(), tmp_path / "run", resume=True).play()
    assert resumed.shared == {}
    for client in whole.federation.ids:
        mine, theirs = resumed.personal(client), whole.personal(client)
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
