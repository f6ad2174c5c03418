"""SST-2 network of the FedDecay paper, BERT-Tiny: I. Turc et al., "Well-read students learn better",
arXiv:1908.08962. Input: integer tokens, (T,), starting with [CLS]. 0 is padding, which gets no attention.

Body: an embedding, two layers of width 128 with two attention heads, the pooler (a dense layer and tanh on the output
at [CLS]), and dropout. It has 4,385,920 parameters. Head: one linear layer. The initial values are random unless
`weights` names a pretrained model.
"""

import logging
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from coterie.errors import UserError
from coterie.models.model import Model
from coterie.settings import Share, settings, user_path

logger = logging.getLogger("coterie")

WIDTH = 128
LAYERS = 2
HEADS = 2


@settings
class BertTiny(Model):
    """BERT with two layers of width 128: the FedDecay paper's network for SST-2."""

    weights: str | None = None
    """Folder of a pretrained BERT, with config.json and model.safetensors. Its tokens must come from the vocab.txt of
    the same model. Default: random weights."""
    dropout: Share = 0.1
    """Dropout rate for embeddings, attention, outputs of each layer, and features."""

    def build(self, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        if len(shape) != 1:
            raise UserError(f"the model bert-tiny takes integer tokens, as (T,), but these inputs have shape {shape}")
        bert = self._pretrained(user_path(self.weights)) if self.weights else self._random()
        if shape[0] > (most := bert.config.max_position_embeddings):
            raise UserError(f"the model bert-tiny takes at most {most} tokens, but these inputs have {shape[0]}")
        net = nn.Sequential()
        net.add_module("body", Pooled(bert, self.dropout))
        net.add_module("head", nn.Linear(bert.config.hidden_size, num_outputs))
        return net

    def _random(self) -> Any:
        logger.info("bert-tiny starts from random weights; to use a pretrained model, set model.weights to its folder")
        sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
        transformers = _transformers()
        config = transformers.BertConfig(**sizes, intermediate_size=4 * WIDTH, **self._choices())
        return transformers.BertModel(config)

    def _pretrained(self, folder: Path) -> Any:
        if self.init != "default":
            raise UserError(
                f'model.init = "{self.init}" would overwrite the pretrained weights; remove it or model.weights'
            )
        if missing := [name for name in ("config.json", "model.safetensors") if not (folder / name).is_file()]:
            raise UserError(
                f"model.weights: {folder} has no {' and no '.join(missing)}; a pytorch_model.bin is not "
                "accepted, because it is a pickle that could run code: save the model again with safetensors"
            )
        read = _transformers().BertModel.from_pretrained
        try:
            bert, told = read(
                folder, local_files_only=True, use_safetensors=True, output_loading_info=True, **self._choices()
            )
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise UserError(f"model.weights: {folder} cannot be read as a BERT model: {error}") from error
        if lacking := told["missing_keys"]:
            raise UserError(
                f"model.weights: {folder} is not a complete BERT model; missing: {', '.join(sorted(lacking))}"
            )
        return bert.float()

    def _choices(self) -> dict[str, Any]:
        return {
            "hidden_dropout_prob": self.dropout,
            "attention_probs_dropout_prob": self.dropout,
            "attn_implementation": "eager",
        }


class Pooled(nn.Module):
    """BERT with its pooler, from (N, T) to (N, M).

    It has no buffers. BERT stores position numbers in buffers, and these must not be averaged.
    """

    def __init__(self, bert: Any, dropout: float) -> None:
        super().__init__()
        self.embeddings = bert.embeddings
        self.encoder = bert.encoder
        self.pooler = bert.pooler
        del self.embeddings.position_ids, self.embeddings.token_type_ids
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)[None]
        embedded = self.embeddings(x, token_type_ids=torch.zeros_like(x), position_ids=places)
        nowhere = torch.finfo(embedded.dtype).min
        mask = embedded.new_zeros(x.shape).masked_fill(x == 0, nowhere)[:, None, None]  # for all heads and positions
        encoded = self.encoder(embedded, attention_mask=mask).last_hidden_state
        pooled: Tensor = self.dropout(self.pooler(encoded))
        return pooled


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise UserError("the model bert-tiny needs transformers: pip install 'coterie[text]'") from None
    return transformers
