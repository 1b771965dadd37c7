"""The vision transformer of `vit-patch4` with a faster attention: the same parameters, outputs equal up to rounding."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from tasks.learning.models import vit_patch4


def build(*, image_shape: Sequence[int], num_classes: int) -> nn.Module:
    """Build the ViT of `vit-patch4`: names, shapes and random weights of its parameters are equal for equal seeds.

    Raises `ValueError` unless images are square with a side that is a multiple of the patch size.
    """
    model = vit_patch4.build(image_shape=image_shape, num_classes=num_classes)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.MultiheadAttention):
                setattr(module, name, PackedAttention(child))
    return model


class PackedAttention(nn.Module):
    """Self-attention with the parameters of a `torch.nn.MultiheadAttention`, whose rows are (batch, token, width).

    One product gives queries, keys and values, of which `scaled_dot_product_attention` reads views; torch's module
    copies them and moves the batch to the second dimension and back.
    """

    def __init__(self, original: nn.MultiheadAttention) -> None:
        super().__init__()
        assert original.batch_first and original.dropout == 0 and original.bias_k is None, "not the attention of a ViT"
        self.num_heads = original.num_heads
        self.in_proj_weight, self.in_proj_bias = original.in_proj_weight, original.in_proj_bias
        self.out_proj = original.out_proj

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, need_weights: bool = False) -> tuple[Tensor, None]:
        """Attend from `query` (B, T, width) to itself: torchvision passes it as `key` and `value` too."""
        batch, tokens, width = query.shape
        packed = linear(query, self.in_proj_weight, self.in_proj_bias).view(batch, tokens, 3, self.num_heads, -1)
        queries, keys, values = packed.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, heads, T, width of a head)
        attended = scaled_dot_product_attention(queries, keys, values)
        return self.out_proj(attended.transpose(1, 2).reshape(batch, tokens, width)), None
