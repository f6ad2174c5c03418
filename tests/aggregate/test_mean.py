"""The weighted sum is the same in whatever order and in whatever groups replies arrive."""

import pytest
import torch

from coterie.aggregate.mean import Mean
from coterie.core.tree import stack

TENSORS = [{"a": torch.tensor([1.0, 2.0]) * i, "n": torch.tensor(i)} for i in range(1, 5)]
NUMBERS = [{"loss": torch.tensor(10.0 * i)} for i in range(1, 5)]
WEIGHTS = torch.tensor([0.5, 1.0, 0.25, 2.0], dtype=torch.float64)
EXPECTED = 0.5 * 1 + 1 * 2 + 0.25 * 3 + 2 * 4


def total(*parts: slice):
    made = Mean().start()
    for part in parts:
        made.add(WEIGHTS[part], stack(TENSORS[part]), stack(NUMBERS[part]))
    return made


def merged():
    one, other = total(slice(0, 1)), total(slice(1, 4))
    one.merge(other)
    return one


def summed():
    made = total(slice(0, 2))
    made.add_sum(2.25, {"a": torch.tensor([8.75, 17.5]), "n": torch.tensor(8.75)}, {"loss": torch.tensor(87.5)})
    return made


@pytest.mark.parametrize(
    "made",
    [lambda: total(slice(0, 4)), lambda: total(*[slice(i, i + 1) for i in range(4)]), merged, summed],
    ids=["at once", "one by one", "merged", "summed before"],
)
def test_the_sum_is_the_same(made):
    result = made().result()
    assert result.tensors.keys() == {"a", "n"}
    assert result.tensors["a"].tolist() == pytest.approx([EXPECTED, 2 * EXPECTED])
    assert float(result.tensors["n"]) == pytest.approx(EXPECTED)  # a BatchNorm's counter, as a number with a fraction
    assert result.numbers.keys() == {"loss"}
    assert float(result.numbers["loss"]) == pytest.approx(10 * EXPECTED)
    assert float(result.mean("loss")) == pytest.approx(10 * EXPECTED / 3.75)
    assert float(result.weight) == 3.75


def test_merging_with_a_total_that_has_seen_nobody():
    one, nobody = total(slice(0, 4)), Mean().start()
    nobody.merge(one)
    assert nobody.result().tensors["a"].tolist() == pytest.approx([EXPECTED, 2 * EXPECTED])
    nobody.merge(Mean().start())
    assert nobody.result().tensors["a"].tolist() == pytest.approx([EXPECTED, 2 * EXPECTED])
