"""The network equals BERT in transformers, without buffers. Pretrained weights are only read from a folder."""

import json
import logging
import sys

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from transformers import BertConfig, BertForPreTraining, BertModel

from coterie.core.task import Task
from coterie.errors import UserError
from coterie.models.bert_tiny import BertTiny
from coterie.streams import torch_seeded


@pytest.fixture(scope="module")
def net():
    with torch_seeded(5):
        return BertTiny(dropout=0.0).build((12,), 2).double()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write a pretrained model as published, with unneeded heads and a different dropout rate."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    path = tmp_path_factory.mktemp("weights")
    with torch_seeded(6):
        model = BertForPreTraining(BertConfig(**sizes, vocab_size=50, hidden_dropout_prob=0.3))
    model.save_pretrained(path)
    return path


def sentences():
    x = torch.randint(1000, 30522, (6, 12), generator=torch.Generator().manual_seed(1))
    x[:, 0] = 101
    x[0, 5:] = x[3, 11:] = 0
    return x


def test_the_number_of_parameters(net):
    embedding = 128 * (30522 + 512 + 2) + 2 * 128
    layer = 4 * (128 * 128 + 128) + (128 * 512 + 512) + (512 * 128 + 128) + 4 * 128
    assert sum(p.numel() for p in net.body.parameters()) == embedding + 2 * layer + 128 * 128 + 128 == 4_385_920
    assert net.head.weight.shape == (2, 128)
    assert {part.num_attention_heads for part in net.modules() if hasattr(part, "num_attention_heads")} == {2}


def test_it_computes_what_transformers_computes(net):
    config = BertConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512)
    theirs = BertModel(config).double().eval()
    told = theirs.load_state_dict(net.body.state_dict(), strict=False)
    assert (told.missing_keys, told.unexpected_keys) == ([], [])
    x = sentences()
    expected = theirs(x, attention_mask=(x != 0).long()).pooler_output
    torch.testing.assert_close(net.body(x), expected, rtol=1e-10, atol=1e-12)


def test_padding_is_not_attended_to(net):
    x = sentences()
    longer = torch.cat([x, torch.zeros(6, 4, dtype=torch.long)], dim=1)
    torch.testing.assert_close(net(longer), net(x), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(net(torch.where(longer == 0, 7, longer)), net(x))


def test_all_parameters_get_a_gradient_also_mapped_over_clients(net):
    x, y = sentences().reshape(3, 2, 12), torch.tensor([[0, 1], [1, 1], [0, 0]])

    def loss(params, x, y):
        return nn.functional.cross_entropy(functional_call(net, params, (x,)), y)

    params = {name: torch.stack([value.detach() * f for f in (1, 0.5, 2)]) for name, value in net.named_parameters()}
    mapped = vmap(grad(loss))(params, x, y)
    for client in range(3):
        single = grad(loss)({name: value[client] for name, value in params.items()}, x[client], y[client])
        for name, value in single.items():
            assert value.abs().sum() > 0, name
            torch.testing.assert_close(mapped[name][client], value, rtol=1e-8, atol=1e-12)


def test_as_a_task(net):
    x = sentences()
    task = Task(net, "head", x)
    assert (task.buffers, task.num_outputs, task.is_random, task.mixes_examples) == ((), 2, False, False)
    assert task.head == ("head.weight", "head.bias")
    assert all(value.is_floating_point() for value in task.initial.values())
    features, pull_back, _ = task.body_vjp(task.initial, x)
    (gradient,) = pull_back(torch.ones_like(features))
    expected = torch.autograd.grad(net.body(x).sum(), list(net.body.parameters()))
    for (name, _), value in zip(net.body.named_parameters(), expected, strict=True):
        torch.testing.assert_close(gradient[f"body.{name}"], value, rtol=1e-10, atol=1e-12)


def test_dropout_is_where_bert_has_it():
    net = BertTiny(dropout=0.25).build((12,), 2)
    assert [part.p for part in net.modules() if isinstance(part, nn.Dropout)] == [0.25] * 8
    assert Task(net, "head", sentences()).is_random
    with torch_seeded(0):
        features = net.body(sentences())
    assert 0.1 < (features == 0).double().mean() < 0.4  # the last one belongs to the body


def test_random_weights_are_told_and_seeded(caplog):
    with caplog.at_level(logging.INFO, logger="coterie"):
        drawn = []
        for seed in (1, 1, 2):
            with torch_seeded(seed):
                drawn.append(BertTiny().build((12,), 2).state_dict())
    assert "bert-tiny starts from random weights" in caplog.text
    assert all(torch.equal(drawn[0][name], drawn[1][name]) for name in drawn[0])
    name = "body.encoder.layer.0.intermediate.dense.weight"
    assert not torch.equal(drawn[0][name], drawn[2][name])
    assert drawn[0][name].std().item() == pytest.approx(0.02, rel=0.02)


def test_pretrained_weights(folder, caplog):
    with caplog.at_level(logging.INFO, logger="coterie"):
        net = BertTiny(weights=str(folder), dropout=0.0).build((12,), 3)
    assert "random weights" not in caplog.text
    theirs = BertForPreTraining.from_pretrained(folder, local_files_only=True).bert.state_dict()
    ours = net.body.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert net.head.weight.shape == (3, 8)
    assert {part.p for part in net.modules() if isinstance(part, nn.Dropout)} == {0}
    with pytest.raises(UserError, match="does not take inputs"):
        Task(net, "head", torch.full((1, 12), 50))


def test_half_precision_is_widened(folder, tmp_path):
    BertModel.from_pretrained(folder, local_files_only=True).half().save_pretrained(tmp_path)
    net = BertTiny(weights=str(tmp_path)).build((12,), 2)
    assert {value.dtype for value in net.parameters()} == {torch.float32}


def test_folders_that_cannot_be_read(folder, tmp_path):
    with pytest.raises(
        UserError, match=r"has no config\.json and no model\.safetensors; a pytorch_model\.bin is not accepted"
    ):
        BertTiny(weights="google/bert_uncased_L-2_H-128_A-2").build((12,), 2)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"no safetensors")
    with pytest.raises(UserError, match="cannot be read as a BERT model"):
        BertTiny(weights=str(tmp_path)).build((12,), 2)
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_size": 10}))
    with pytest.raises(UserError, match="cannot be read as a BERT model"):
        BertTiny(weights=str(tmp_path)).build((12,), 2)
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    with pytest.raises(UserError, match=r"is not a complete BERT model; missing: .*layer\.1\.attention"):
        BertTiny(weights=str(tmp_path)).build((12,), 2)
    with pytest.raises(UserError, match='init = "glorot-normal" would overwrite the pretrained weights'):
        BertTiny(weights=str(folder), init="glorot-normal").build((12,), 2)


def test_inputs_it_cannot_take():
    with pytest.raises(UserError, match=r"takes integer tokens, as \(T,\), but these inputs have shape \(28, 28\)"):
        BertTiny().build((28, 28), 10)
    with pytest.raises(UserError, match="takes at most 512 tokens, but these inputs have 513"):
        BertTiny().build((513,), 2)
    with pytest.raises(UserError, match=r"does not take inputs of shape 12 and type torch\.float32"):
        Task(BertTiny().build((12,), 2), "head", torch.rand(1, 12))


def test_the_package_may_be_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"pip install 'coterie\[text\]'"):
        BertTiny().build((12,), 2)
