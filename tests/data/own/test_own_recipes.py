"""A user's own data, used from a recipe without Python code."""

import numpy as np
import pytest

from coterie.data.federation import Federation
from coterie.errors import UserError
from coterie.recipe import Recipe, read
from data.own.make import clients, rows, write_csv, write_images


def content(federation):
    """Return each client's examples by split, independent of the order in the pool."""
    return {
        name: {
            split: (federation.x[ragged.row(i)].tolist(), [federation.labels[y] for y in federation.y[ragged.row(i)]])
            for split, ragged in federation.splits.items()
        }
        for i, name in enumerate(federation.ids)
    }


def recipe(**data):
    return Recipe.parse({"data": data, "partition": {"name": "natural", "new_users": 0.0}})


@pytest.mark.parametrize("validation", [0.0, 0.2])
def test_a_table(tmp_path, validation):
    path = str(write_csv(tmp_path / "all.csv", rows(clients(), part="x")))
    choices = {"features": ["age", "weight"], "test": 0.3, "validation": validation, "seed": 4}
    federation = recipe(name="table", path=path, client="site", label="y", **choices).federation()
    assert content(federation) == content(Federation.from_table(path, **choices))
    assert federation.ids == ("anna", "ben", "carl")


def test_a_folder_with_its_own_validation_examples(tmp_path):
    for name, (x, y) in clients().items():
        np.savez(tmp_path / name, x_train=x[:5], y_train=y[:5], x_test=x[5:], y_test=y[5:], x_val=x[:2], y_val=y[:2])
    federation = recipe(name="folder", path=str(tmp_path)).federation()
    assert content(federation) == content(Federation.from_folder(tmp_path))
    assert federation.sizes("validation").tolist() == [2, 2, 2]
    tree = {"data": {"name": "folder", "path": str(tmp_path)}, "partition": {"name": "natural", "validation": 0.5}}
    with pytest.raises(UserError, match=r"own validation examples; remove partition.validation = 0.5"):
        Recipe.parse(tree).federation()


def test_a_table_of_tokens(tmp_path):
    words = {name: (np.arange(24).reshape(8, 3), np.array([1, 2] * 4)) for name in ("anna", "ben")}
    path = str(write_csv(tmp_path / "all.csv", rows(words)))
    federation = recipe(name="table", path=path, tokens=True).federation()
    assert not federation.x.is_floating_point()
    assert content(federation) == content(Federation.from_table(path, tokens=True))


def test_a_folder_of_images(tmp_path):
    pytest.importorskip("PIL")
    pixels = np.random.default_rng(0).integers(0, 256, (12, 5, 6, 3), dtype=np.uint8)
    for name in ("anna", "ben"):
        write_images(tmp_path / name, pixels, ["cat", "dog"] * 6)
    choices = {"grey": True, "test": 0.5, "validation": 0.2, "seed": 3}
    federation = recipe(name="folder", path=str(tmp_path), size=[4, 3], **choices).federation()
    assert federation.x.shape[1:] == (4, 3)
    assert content(federation) == content(Federation.from_folder(tmp_path, size=(4, 3), **choices))


def test_a_folder_of_tables(tmp_path):
    for name, mine in clients().items():
        table = rows({name: mine}, part="train")
        write_csv(tmp_path / f"{name}.csv", [{**row, "kind": row["y"]} for row in table])
    choices = {"label": "kind", "split": "part", "features": ["age"]}
    federation = recipe(name="folder", path=str(tmp_path), **choices).federation()
    assert content(federation) == content(Federation.from_folder(tmp_path, **choices))
    assert federation.sizes("test").tolist() == [0, 0, 0]


def test_a_table_with_a_split(tmp_path):
    path = str(write_csv(tmp_path / "all.csv", rows(clients(), part="train")))
    assert recipe(name="table", path=path, split="part").federation().sizes("test").tolist() == [0, 0, 0]


def test_another_partition_deals_them_like_any_data(tmp_path):
    path = str(write_csv(tmp_path / "all.csv", rows(clients())))
    tree = {
        "data": {"name": "table", "path": path, "validation": 0.2},
        "partition": {"name": "classes", "clients": 4, "new_users": 0.0},
    }
    federation = Recipe.parse(tree).federation()
    asked = Federation.from_table(path, validation=0.2)
    for split in ("train", "test", "validation"):
        assert federation.sizes(split).sum() == asked.sizes(split).sum()


def test_settings_come_back_from_the_run_folder(tmp_path):
    import tomli_w

    for data in ({"name": "folder", "path": "/a", "size": [3, 4], "grey": True}, {"name": "table", "path": "/a"}):
        tree = recipe(**data).as_dict()
        (tmp_path / "recipe.toml").write_text(tomli_w.dumps(tree))
        assert read(tmp_path / "recipe.toml").as_dict() == tree


@pytest.mark.parametrize("name", ["folder", "table"])
def test_the_path_must_be_said(name):
    with pytest.raises(UserError, match=f"data.path is missing; set it to the path of your {name}"):
        recipe(name=name).federation()


@pytest.mark.parametrize("size", [[3], [3, 0], [1, 2, 3]])
def test_a_size_is_two_numbers(size):
    with pytest.raises(UserError, match=r"data\.size"):
        recipe(name="folder", path="x", size=size)


@pytest.mark.parametrize("partition", [{}, {"name": "natural"}, {"name": "iid", "clients": 5}])
def test_no_client_of_your_own_is_held_out_unasked(tmp_path, partition):
    path = str(
        write_csv(tmp_path / "all.csv", rows({f"{name}{i}": c for name, c in clients().items() for i in (1, 2)}))
    )
    tree = {"data": {"name": "table", "path": path}, "partition": partition}
    assert not Recipe.parse(tree).federation().is_new.any()
    assert Recipe.parse({**tree, "partition": {**partition, "new_users": 0.4}}).federation().is_new.sum() == 2
    assert Recipe.parse(Recipe.parse(tree).as_dict()) == Recipe.parse(tree)
    assert not read(tree, ["partition.new_users=", "partition.validation="]).federation().is_new.any()


def test_clients_are_held_out_by_name(tmp_path):
    path = str(write_csv(tmp_path / "all.csv", rows(clients())))
    tree = {"data": {"name": "table", "path": path}, "partition": {"new_clients": ["anna"]}}
    federation = Recipe.parse(tree).federation()
    assert [federation.ids[i] for i in federation.new] == ["anna"]


def test_named_new_users_replace_those_that_would_be_drawn():
    tree = {"data": {"name": "synthetic", "clients": 10}, "partition": {"new_clients": ["3"]}}
    assert Recipe.parse(tree).federation().new.tolist() == [3]
    assert Recipe.parse({"data": tree["data"]}).federation().is_new.sum() == 2
