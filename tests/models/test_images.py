"""Random crops and flips of training images: what they draw, and that runs with them can be repeated and resumed."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie import Federation
from coterie.core.task import Task
from coterie.models.images import CropAndFlip
from coterie.models.lenet import LeNet
from coterie.recipe import read
from coterie.streams import torch_seeded
from coterie.training import Training


def test_images_are_cut_from_a_black_frame_and_mirrored():
    """Each result is one of the 2 (2 m + 1)² possible ones, all of which occur equally often."""
    x, m = torch.arange(1.0, 41).reshape(2, 4, 5), 1
    frame = np.pad(x.numpy(), ((0, 0), (m, m), (m, m)))
    cuts = [frame[:, down : down + 4, right : right + 5] for down in range(3) for right in range(3)]
    possible = [each.tobytes() for cut in cuts for each in (cut, np.ascontiguousarray(cut[:, :, ::-1]))]
    assert len(set(possible)) == 18
    with torch_seeded(0):
        drawn = [each.tobytes() for each in CropAndFlip(m)(x.expand(9000, 2, 4, 5)).numpy()]
    counts = [drawn.count(each) for each in possible]
    assert sum(counts) == 9000
    assert min(counts) > 400  # 500 ± 22
    assert max(counts) < 600


def test_images_are_left_alone_in_use():
    layer, x = CropAndFlip(4).eval(), torch.rand(3, 1, 5, 5)
    assert layer(x) is x


@pytest.mark.parametrize("example", [torch.zeros(1, 3, 16, 16), torch.ones(1, 3, 16, 16), torch.rand(1, 3, 16, 16)])
def test_engines_know_that_training_is_random_even_if_the_first_image_has_one_colour(example):
    model = LeNet(augment=True, hidden=8)
    with torch_seeded(0):
        task = Task(model.build((3, 16, 16), 5), model.head, example)
    assert (task.is_random, task.mixes_examples, task.modes_agree) == (True, False, False)
    x = torch.rand(2, 3, 16, 16)
    assert torch.equal(task.outputs(task.initial, x), task.outputs(task.initial, x))


def test_parameters_are_those_without_it():
    plain, augmented = (LeNet(augment=each).build((3, 32, 32), 100) for each in (False, True))
    assert [value.shape for value in plain.parameters()] == [value.shape for value in augmented.parameters()]


@pytest.mark.parametrize("method", ["fedavg", "fedrep", "pflego"])
def test_a_run_with_it_is_repeated_and_resumed_to_the_bit(tmp_path, method):
    rng = np.random.default_rng(0)
    parts = {f"c{i}": (rng.random((n, 3, 16, 16), np.float32), np.arange(n) % 3) for i, n in enumerate((6, 9, 5))}
    federation = Federation.from_arrays(parts, test=0.3)
    changes = ["model.name=lenet", "model.augment=true", "model.hidden=8", f"method.name={method}", "method.tau=6"]
    changes += ["run.rounds=4", "run.checkpoint_every=1", "run.clients_per_round=2", "run.eval_every=4"]
    recipe = read("digits", changes)

    def losses(folder, resume=False, until=4):
        found = []
        training = Training(recipe, federation, folder, resume=resume)
        training.play(lambda record: found.append(record.train_loss), lambda: len(found) == until)
        return found

    whole = losses(tmp_path / "whole")
    assert len(set(whole)) == 4
    assert losses(tmp_path / "again") == whole
    with pytest.raises(KeyboardInterrupt):
        losses(tmp_path / "parts", until=2)
    rest = losses(tmp_path / "parts", resume=True)
    assert 0 < len(rest) < 4
    assert rest == whole[-len(rest) :]
    plain = replace(recipe, model=replace(recipe.model, augment=False))
    other = []
    Training(plain, federation, tmp_path / "plain").play(lambda record: other.append(record.train_loss), lambda: False)
    assert other != whole
