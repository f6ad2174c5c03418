"""Components of a third party, under the names that it gives them."""

import pytest

import coterie
import reference as ref
from coterie import recipe, registry
from coterie.errors import UserError
from coterie.methods import FedAvg

METHOD = """
from coterie.core.method import settings
from coterie.methods.fedsgd import FedSGD

@settings
class Mine(FedSGD):
    '''One's own.'''
"""


@pytest.fixture
def third_party(tmp_path, monkeypatch):
    """A package that is installed, and names a class by where it re-exports it."""
    package, told = tmp_path / "someones_package", tmp_path / "someones_package-1.dist-info"
    package.mkdir()
    (package / "methods.py").write_text(METHOD)
    (package / "__init__.py").write_text("from someones_package.methods import Mine\n")
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: someones-package\nVersion: 1\n")
    points = "[coterie.method]\nmine = someones_package:Mine\nbroken = someones_package.gone:Gone\n"
    (told / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path)
    registry._third_party.cache_clear()
    yield
    registry._third_party.cache_clear()


def test_a_method_of_a_third_party_is_read_back_by_its_name(third_party, tmp_path):
    assert "mine" in registry.names("method")
    coterie.train(ref.federation(), method="mine", rounds=1, out=tmp_path / "run")
    assert 'name = "mine"' in (tmp_path / "run" / "recipe.toml").read_text()
    again = recipe.read(tmp_path / "run" / "recipe.toml").method
    assert type(again) is registry.load("method", "mine")
    assert registry.name_of("method", again) == "mine"


def test_a_class_that_cannot_be_imported_is_an_error_with_its_reason(third_party):
    with pytest.raises(UserError, match=r"'broken' of an installed plug-in .*: ModuleNotFoundError: .*uninstall"):
        registry.load("method", "broken")


def test_what_nobody_registered_has_the_name_of_its_class(third_party):
    """Whatever else is installed, and cannot be imported."""

    class Another(FedAvg):
        pass

    assert registry.name_of("method", Another()) == Another.__qualname__
    assert registry.name_of("method", FedAvg()) == "fedavg"
