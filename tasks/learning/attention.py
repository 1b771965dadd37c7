"""Self-attention in few operations; a module of its own, so that models by name need no torch."""

from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention


class PackedAttention(nn.MultiheadAttention):
    """Self-attention with the weights of its base, but without its copies of queries, keys and values.

    Supports one input, batch first, without dropout, mask and returned attention.
    """

    def forward(self, query: Tensor, *_: Tensor, need_weights: bool = False) -> tuple[Tensor, None]:  # type: ignore[override]
        """Return `query`, (B, tokens, width), after self-attention."""
        assert not need_weights
        packed = linear(query, self.in_proj_weight, self.in_proj_bias)
        heads = (part.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2) for part in packed.chunk(3, dim=2))
        attended = scaled_dot_product_attention(*heads)
        return self.out_proj(attended.transpose(1, 2).flatten(2)), None


def pack(model: nn.Module) -> None:
    """Replace every attention of `model` by a packed one with the same weights."""
    for name, attention in list(model.named_modules()):
        if isinstance(attention, nn.MultiheadAttention):
            assert attention.batch_first and not attention.dropout
            packed = PackedAttention(attention.embed_dim, attention.num_heads, batch_first=True, device="meta")
            packed.load_state_dict(attention.state_dict(), assign=True)
            model.set_submodule(name, packed)
