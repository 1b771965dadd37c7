"""The head of a model, which turns features into logits, and its backbone, everything else."""

from torch import nn


def head_of(backbone: nn.Module) -> str:
    """Return the name of the submodule of `backbone` that turns features into logits.

    A model of the user's own says it by an attribute `head`: the name, or the submodule itself.

    Raises `ValueError` naming the model's class if it does not, or if that submodule has no weights.
    """
    kind, library = type(backbone).__name__, type(backbone).__module__.partition(".")[0]
    head: object = getattr(backbone, "head", None)
    if isinstance(head, nn.Module):
        head = "head"
    if library == "timm":
        head = backbone.default_cfg["classifier"]  # type: ignore[index]
        if isinstance(head, tuple):  # distilled ones, for example
            raise ValueError(f"model {kind} has several heads, {', '.join(head)}; choose one with a single head")
    elif library == "torchvision" and not isinstance(head, str):
        layer = last_layer(backbone)
        head = next(name for name, module in backbone.named_modules() if module is layer)
    if not isinstance(head, str):
        raise ValueError(
            f"model {kind} does not say where its one head is; give it an attribute `head`, the name of the submodule "
            'that gives the logits, such as model.head = "fc"'
        )
    if not any(name.startswith(f"{head}.") for name, _ in backbone.named_parameters()):
        raise ValueError(f"model {kind} has no weights below {head!r}, which its attribute `head` names")
    return head


def last_layer(model: nn.Module) -> nn.Linear | nn.Conv2d | None:
    """Return the last linear or convolutional layer of `model`, if it has any."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    return layers[-1] if layers else None


def weights_of_backbone(model: nn.Module) -> list[nn.Parameter]:
    """Return the weights of `model` outside of its head, in its order; raises `ValueError` as `head_of` does."""
    head = head_of(model)
    return [weight for name, weight in model.named_parameters() if not name.startswith(f"{head}.")]


def norms_of_backbone(model: nn.Module) -> list[nn.Module]:
    """Return the modules of `model` outside of its head that keep running statistics, as batch normalisation does.

    torchvision's references train all layers of a classifier with these statistics following each batch, as an
    unfrozen backbone does here; where they freeze one, in detection, its statistics are frozen too
    (`FrozenBatchNorm2d`).
    """
    head = head_of(model)
    modules = [module for name, module in model.named_modules() if not f"{name}.".startswith(f"{head}.")]
    return [module for module in modules if getattr(module, "track_running_stats", False)]
