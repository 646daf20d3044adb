"""torchvision's models and transforms as its users use them; `make strangers` runs it."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import torchvision
from torchvision import ops
from torchvision.models import feature_extraction
from torchvision.transforms import v2

SMALL = ("resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_1", "vit_b_16")


def model_of(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if name == "vit_b_16":
        return torchvision.models.VisionTransformer(32, 16, 2, 2, 16, 32).eval()
    return torchvision.models.get_model(name, weights=None, num_classes=10).eval()


def image_for(name: str) -> torch.Tensor:
    return torch.rand(2, 3, *((32, 32) if name == "vit_b_16" else (64, 64)))


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("use", ["script", "trace", "fx", "export", "deepcopy", "save", "vmap"])
def test_models(name: str, use: str) -> None:
    model, image = model_of(name), image_for(name)
    expected = model(image)
    if use == "script":
        result = torch.jit.script(model)(image)
    elif use == "trace":
        result = torch.jit.trace(model, image, check_trace=False)(image)
    elif use == "fx":
        if name == "vit_b_16":
            feature_extraction.get_graph_node_names(model)
            return
        result = torch.fx.symbolic_trace(model)(image)
    elif use == "export":
        result = torch.export.export(model, (image,)).module()(image)
    elif use == "deepcopy":
        result = copy.deepcopy(model)(image)
    elif use == "vmap":
        result = torch.vmap(model)(image[None])[0]
    else:
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        other = model_of(name)
        other.load_state_dict(torch.load(file, map_location="cpu"))
        result = other(image)
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("name", ["resnet18", "vit_b_16"])
def test_training_repeats_its_numbers(name: str) -> None:
    losses = []
    for _ in range(2):
        model, image = model_of(name).train(), torch.ones(2, 3, 64, 64)[:, :, :32, :32]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            loss = model(image).logsumexp(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    "transform",
    [v2.RandomHorizontalFlip(1.0), v2.Resize(8), v2.ColorJitter(0.5), v2.Normalize([0.5], [0.5])],
    ids=lambda one: type(one).__name__,
)
def test_transforms(transform: torch.nn.Module) -> None:
    image = torchvision.tv_tensors.Image(torch.rand(3, 16, 16))
    before = image.clone()
    assert isinstance(transform(image), torchvision.tv_tensors.Image)
    assert torch.equal(image, before)
    assert isinstance(image.to("cpu"), torch.Tensor)


def test_operators() -> None:
    boxes = torch.tensor([[0.0, 0, 4, 4], [0, 0, 4, 3.9], [5, 5, 9, 9]])
    assert ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5).tolist() == [0, 2]
    assert torch.jit.script(ops.box_area)(boxes)[0] == 16
    detector = torchvision.models.detection.ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=3
    ).eval()
    with torch.no_grad():
        assert "boxes" in detector([torch.rand(3, 64, 64)])[0]
