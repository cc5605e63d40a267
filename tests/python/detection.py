# SPDX-License-Identifier: MIT
# tests/python/detection.py - a model of the shape of a detector: heads beside the lists of layers
import torch
from torch import nn


class Detector(nn.Module):
    """A backbone, a pyramid over its features, and heads, which are in no ModuleList and save most
    of what is saved: they run on each level of the pyramid."""

    def __init__(self, width=16, levels=3):
        super().__init__()
        self.backbone = nn.ModuleList(
            nn.Sequential(nn.Conv2d(3 if level == 0 else width, width, 3, stride=2, padding=1),
                          nn.GELU()) for level in range(levels))
        self.pyramid = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(levels))
        self.objects = nn.Conv2d(width, width, 3, padding=1)
        self.boxes = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.classes = nn.Conv2d(2 * width, 2 * width, 3, padding=1)

    def forward(self, x):
        features = []
        for stage in self.backbone:
            x = stage(x)
            features.append(x)
        features = [layer(feature) for layer, feature in zip(self.pyramid, features)]
        losses = []
        for feature in features:
            hidden = nn.functional.gelu(self.objects(feature))
            hidden = nn.functional.gelu(self.boxes(hidden))
            losses.append(nn.functional.gelu(self.classes(hidden)).mean())
        return torch.stack(losses)
