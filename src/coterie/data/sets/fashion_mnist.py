"""Fashion-MNIST: H. Xiao, K. Rasul, R. Vollgraf, arXiv:1708.07747."""

from pathlib import Path

from coterie.data.examples import Examples
from coterie.data.files.locate import locate
from coterie.data.sets.dataset import Dataset
from coterie.data.sets.mnist_family import family, load_family
from coterie.settings import settings

_FILES = family(
    (
        "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "md5:25c81989df183df01b3e8a0aad5dffbe",
        "md5:bef4ecab320f06d8554ea6380940ec79",
        "md5:bb300cfdad3c16e7a12a480ee83cd310",
    ),
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
)


@settings
class FashionMNIST(Dataset):
    """Images of clothing, 28x28, in 10 classes of equal size: 60,000 for training and 10,000 for testing."""

    path: str | None = None
    """Folder with the four IDX files. Default: search $COTERIE_DATA/fashion-mnist and the user's cache, then
    download."""

    def files(self) -> list[Path]:
        return locate("fashion-mnist", _FILES, "https://github.com/zalandoresearch/fashion-mnist", self.path)

    def load(self) -> Examples:
        return load_family(self.files(), labels=_ARTICLES)


_ARTICLES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
